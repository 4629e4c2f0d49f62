//! Priority of sources, rejected settings, and secrecy.

use super::*;

const SECRET: &str = "damper_id_verysecret";

fn resolved(settings: AccessSettings, servers: &[&str], env: &[(&str, &str)]) -> Result<Access, Faults> {
    let find = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let servers: Vec<_> = servers
        .iter()
        .enumerate()
        .map(|(i, url)| (format!("endpoints[{i}]"), url.parse().unwrap()))
        .collect();
    let mut faults = Faults::none();
    let access = Access::resolve(settings, Speaker::Code, &servers, &find, &mut faults);
    faults.or(access)
}

fn paths(result: Result<Access, Faults>) -> Vec<String> {
    result.unwrap_err().iter().map(|fault| fault.path.clone()).collect()
}

fn with_token() -> AccessSettings {
    AccessSettings { token: Some(SECRET.to_owned()), ..AccessSettings::default() }
}

#[test]
fn a_token_needs_tls_or_permission_to_leave_the_machine() {
    let servers = [
        "http://127.0.0.1:1",
        "http://damper:1",
        "http://[::1]:1",
        "http://localhost:1",
        "http://10.0.0.1:1",
    ];
    assert_eq!(paths(resolved(with_token(), &servers, &[])), ["endpoints[1]", "endpoints[4]"]);
    assert_eq!(paths(resolved(AccessSettings::default(), &servers, &[("DAMPER_TOKEN_FILE", "t")])).len(), 2);
    let allowed = AccessSettings { allow_plaintext: true, ..with_token() };
    assert!(resolved(allowed, &servers, &[]).is_ok());
    assert!(resolved(with_token(), &servers, &[("DAMPER_INSECURE_ALLOW_PLAINTEXT", "true")]).is_ok());
    assert!(resolved(AccessSettings::default(), &servers, &[]).is_ok(), "no token, no risk");
    #[cfg(feature = "tls")]
    assert!(resolved(with_token(), &["https://damper:1"], &[]).is_ok());
}

#[test]
fn all_faults_come_at_once_under_the_place_they_came_from() {
    let env = [
        ("DAMPER_CERT_FILE", "c"),
        ("DAMPER_TOKEN", "two words"),
        ("DAMPER_INSECURE_ALLOW_PLAINTEXT", "yes"),
    ];
    let found = paths(resolved(AccessSettings::default(), &["http://127.0.0.1:1"], &env));
    assert_eq!(found, ["DAMPER_TOKEN", "DAMPER_INSECURE_ALLOW_PLAINTEXT", "DAMPER_KEY_FILE"]);
    let settings =
        AccessSettings { key_file: Some("k".into()), token_file: Some("t".into()), ..with_token() };
    assert_eq!(paths(resolved(settings, &[], &[])), ["token_file", "cert_file"]);
    let both = [("DAMPER_TOKEN", "a"), ("DAMPER_TOKEN_FILE", "b")];
    assert_eq!(paths(resolved(AccessSettings::default(), &[], &both)), ["DAMPER_TOKEN_FILE"]);
}

#[cfg(feature = "tls")]
#[test]
fn names_that_no_certificate_can_have_are_refused() {
    let settings = AccessSettings { server_name: Some("two words".to_owned()), ..AccessSettings::default() };
    assert_eq!(paths(resolved(settings, &[], &[])), ["server_name"]);
    assert_eq!(
        paths(resolved(AccessSettings::default(), &[], &[("DAMPER_SERVER_NAME", "-a..b")])),
        ["DAMPER_SERVER_NAME"]
    );
    assert_eq!(paths(resolved(AccessSettings::default(), &["https://a..b:1"], &[])), ["endpoints[0]"]);
    let named = [("DAMPER_SERVER_NAME", "damper.example.org")];
    assert!(
        resolved(AccessSettings::default(), &["https://a..b:1"], &named).is_ok(),
        "the host is not checked then"
    );
}

#[test]
fn settings_win_over_variables_as_a_whole() {
    let env = [("DAMPER_TOKEN", "of-variable"), ("DAMPER_CERT_FILE", "c"), ("DAMPER_KEY_FILE", "k")];
    let settings = AccessSettings {
        token_file: Some("t".into()),
        cert_file: Some("x".into()),
        key_file: Some("y".into()),
        ..AccessSettings::default()
    };
    let access = resolved(settings, &[], &env).unwrap();
    assert!(matches!(&access.token, Source::File(path, _) if path.as_os_str() == "t"));
    assert_eq!(access.files.certificate, Some(("x".into(), "y".into())));
    let access = resolved(AccessSettings::default(), &[], &env).unwrap();
    assert!(
        matches!(&access.token, Source::Given(token, _) if *token == Token::parse("of-variable").unwrap())
    );
}

#[test]
fn a_file_that_is_missing_is_the_attempts_problem() {
    let settings = AccessSettings {
        token_file: Some("/no/such/token".into()),
        ca_file: Some("/no/such/ca".into()),
        ..AccessSettings::default()
    };
    let access = resolved(settings, &[], &[]).unwrap();
    let problem = access.open(&"http://127.0.0.1:1".parse().unwrap()).unwrap_err();
    assert!(problem.contains("/no/such/token"), "{problem}");
}

#[cfg(feature = "tls")]
#[test]
fn files_of_no_use_are_named_and_nothing_of_a_key_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let uri: Uri = "https://127.0.0.1:1".parse().unwrap();
    let open = |access: &Access| access.open(&uri).unwrap_err();
    std::fs::write(path("empty"), "").unwrap();
    std::fs::write(path("garbage"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    for (name, words) in
        [("missing", "No such file"), ("empty", "no certificate"), ("garbage", "cannot be read")]
    {
        let settings = AccessSettings { ca_file: Some(path(name)), ..AccessSettings::default() };
        let problem = open(&resolved(settings, &[], &[]).unwrap());
        assert!(problem.contains(words) && problem.contains(name), "{problem}");
    }
    std::fs::write(path("key"), "-----BEGIN PRIVATE KEYverysecret\n").unwrap();
    let settings = AccessSettings {
        cert_file: Some(path("garbage")),
        key_file: Some(path("key")),
        ..AccessSettings::default()
    };
    let problem = open(&resolved(settings, &[], &[]).unwrap());
    assert!(problem.contains("key file") && !problem.contains("verysecret"), "{problem}");
}

#[test]
fn nothing_secret_is_printed() {
    let settings = with_token();
    let shown = format!("{settings:?}");
    let access = resolved(settings, &[], &[]).unwrap();
    let opening = access.open(&"http://127.0.0.1:1".parse().unwrap()).unwrap();
    for shown in [shown, format!("{access:?}"), format!("{opening:?}")] {
        assert!(!shown.contains("verysecret"), "{shown}");
    }
    let problem = resolved(
        AccessSettings { token: Some("very secret".to_owned()), ..AccessSettings::default() },
        &[],
        &[],
    )
    .unwrap_err();
    assert!(!problem.to_string().contains("very secret"), "{problem}");
}
