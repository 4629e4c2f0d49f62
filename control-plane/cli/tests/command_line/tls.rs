//! A server that is guarded by TLS and tokens, as the command line meets it.
//!
//! What a server says of a certificate must not be a matter of luck, so such tests ask many times.

use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::harness::{Ended, KEY, Serving, run, text};

const OFTEN: usize = 20;
const AUTHORITY: &str = "an authority of a test";

/// A server with a certificate for 127.0.0.1, its authority's file, and an administrator's token.
struct Guarded(Serving);

fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}

/// Puts a certificate of this name into the folder: NAME.pem and NAME.key.
fn issue(folder: &Path, issuer: &Issuer<'static, KeyPair>, file: &str, name: &str) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    std::fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
    std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
}

impl Guarded {
    fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (issuer, pem) = authority(AUTHORITY);
        std::fs::write(folder.path().join("ca.pem"), pem).unwrap();
        issue(folder.path(), &issuer, "server", "127.0.0.1");
        issue(folder.path(), &issuer, "client", "orders");
        issue(folder.path(), &authority("another").0, "stranger", "orders");
        issue(folder.path(), &authority(AUTHORITY).0, "namesake", "orders");
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (cert, key, token, ca) = (path("server.pem"), path("server.key"), path("token"), path("ca.pem"));
        let mut all = vec![
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "--auth",
            "tokens",
            "--bootstrap-token-file",
            &token,
        ];
        all.extend(settings.iter().map(|setting| if *setting == "CA" { &ca } else { *setting }));
        let mut serving = Serving::start_in(folder, &all);
        serving.address = serving.address.replace("http://", "https://");
        Self(serving)
    }

    fn file(&self, name: &str) -> String {
        text(&self.0.folder.path().join(name)).to_owned()
    }

    /// The command, trusting the authority.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.0.command(args);
        command.env("DAMPER_CA_FILE", self.file("ca.pem"));
        command
    }

    /// The same as the administrator.
    fn run(&self, args: &[&str]) -> Ended {
        run(self.command(args).env("DAMPER_TOKEN_FILE", self.file("token")))
    }
}

#[test]
fn flags_and_variables_open_a_guarded_server() {
    let server = Guarded::start(&[]);
    server.run(&["rules", "list"]).ok();
    let (ca, token) = (server.file("ca.pem"), server.file("token"));
    let flags = ["rules", "list", "--ca-file", &ca, "--token-file", &token];
    server.0.run(&flags).ok();
    let secret = std::fs::read_to_string(&token).unwrap();
    run(server.command(&["rules", "list"]).env("DAMPER_TOKEN", secret.trim())).ok();
    // The first that can be reached of several.
    let several = format!("http://127.0.0.1:1,{}", server.0.address);
    run(server.command(&["rules", "list"]).env("DAMPER_TOKEN_FILE", &token).env("DAMPER_SERVER", several))
        .ok();
}

#[test]
fn denied_request_has_a_remedy_and_no_secret() {
    let server = Guarded::start(&[]);
    let list = ["rules", "list"];
    assert!(run(&mut server.command(&list)).failed(77).contains("--token-file FILE"));
    let wrong = run(server.command(&list).env("DAMPER_TOKEN", "damper_0123_verysecret")).failed(77);
    assert!(wrong.contains("the token came from DAMPER_TOKEN;") && !wrong.contains("verysecret"), "{wrong}");
    let made = server.run(&["token", "create", "a reader", "--role", "viewer"]).ok();
    let token = made.split_whitespace().find(|word| word.starts_with("damper_")).unwrap();
    run(server.command(&list).env("DAMPER_TOKEN", token)).ok();
    let delete: Vec<&str> = ["rules", "delete"].into_iter().chain(KEY).collect();
    let denied = run(server.command(&delete).env("DAMPER_TOKEN", token)).failed(77);
    assert!(denied.contains("role editor") && denied.contains("with that role"), "{denied}");
    let scoped = ["token", "create", "one team", "--role", "editor", "--callee", "other"];
    let made = server.run(&scoped).ok();
    let token = made.split_whitespace().find(|word| word.starts_with("damper_")).unwrap();
    let manifest = crate::harness::manifest("checkout", "{ mode: observe }");
    let file = server.0.file("rule.yaml", manifest);
    let denied = run(server.command(&["apply", "-f", text(&file)]).env("DAMPER_TOKEN", token)).failed(77);
    assert!(denied.contains("scope") && denied.contains("with that scope"), "{denied}");
}

#[test]
fn invalid_certificate_has_a_cause() {
    let server = Guarded::start(&[]);
    let list = ["rules", "list"];
    let unknown = server.0.run(&list).failed(69);
    assert!(
        unknown.contains("unknown authority") && unknown.contains("--ca-file or DAMPER_CA_FILE"),
        "{unknown}"
    );
    assert!(!unknown.contains("damper serve") && !unknown.contains("DAMPER_MODE"), "{unknown}");
    let port = server.0.address.rsplit(':').next().unwrap();
    let by_name = format!("https://localhost:{port}");
    let other = run(server.command(&list).env("DAMPER_SERVER", &by_name)).failed(69);
    assert!(other.contains("for another name: it is for 127.0.0.1, not for localhost"), "{other}");
    assert!(other.contains("--server-name or DAMPER_SERVER_NAME"), "{other}");
    let named = ["rules", "list", "--server-name", "127.0.0.1", "--token-file", &server.file("token")];
    run(server.command(&named).env("DAMPER_SERVER", &by_name)).ok();
    let lost = run(server.command(&list).env("DAMPER_CA_FILE", server.file("nowhere.pem"))).failed(78);
    assert!(lost.contains("nowhere.pem"), "{lost}");
}

#[test]
fn a_client_certificate_is_shown_where_one_is_required() {
    let server = Guarded::start(&["--tls-client-ca", "CA", "--tls-client-certs", "required"]);
    let (cert, key) = (server.file("client.pem"), server.file("client.key"));
    for _ in 0..OFTEN {
        let without = server.run(&["rules", "list"]).failed(69);
        assert!(without.contains("the server requires a client certificate (--cert-file"), "{without}");
        for (wrong, why) in [("stranger", "unknown authority"), ("namesake", "has another key")] {
            let (cert, key) = (server.file(&format!("{wrong}.pem")), server.file(&format!("{wrong}.key")));
            let told = server.run(&["rules", "list", "--cert-file", &cert, "--key-file", &key]).failed(69);
            assert!(
                told.contains("rejects the client certificate: unknown authority") && told.contains(why),
                "{told}"
            );
        }
    }
    server.run(&["rules", "list", "--cert-file", &cert, "--key-file", &key]).ok();
    let half = server.run(&["rules", "list", "--cert-file", &cert]).failed(64);
    assert!(half.contains("--key-file: required, because --cert-file is set"), "{half}");
}

#[test]
fn plaintext_address_suggests_https() {
    let server = Guarded::start(&[]);
    let plain = server.0.address.replace("https://", "http://");
    for _ in 0..OFTEN {
        for args in [["rules", "list"].as_slice(), &["stats"], &["stats", "-w"]] {
            let told = run(server.command(args).env("DAMPER_SERVER", &plain)).failed(69);
            assert!(told.contains(&format!("use {}", server.0.address)), "{told}");
        }
    }
}
