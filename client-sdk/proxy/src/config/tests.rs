use super::*;

const WHOLE: &str = "
service: checkout
inbound: { listen: 0.0.0.0:50051, to: 127.0.0.1:50052, edge: false }
outbound:
  - { callee: inventory, listen: 127.0.0.11:50051, to: inventory.shop.svc.cluster.local.:50051 }
  - { callee: payments, listen: 127.0.0.12:50051, to: payments.example:443, external: true, tls: {} }
admin: 127.0.0.1:7801
drain: 30s
";

fn read(text: &str) -> Result<Config, String> {
    Config::read(text, ReadConfig::default()).map_err(|error| error.to_string())
}

#[test]
fn whole_configuration_is_read() {
    let config = read(WHOLE).unwrap();
    assert_eq!(config.service.as_deref(), Some("checkout"));
    assert_eq!(config.inbound.unwrap().to, "127.0.0.1:50052".parse().unwrap());
    let [inventory, payments] = &config.outbound[..] else { panic!("two listeners") };
    assert_eq!(inventory.callee.to, "inventory.shop.svc.cluster.local.:50051");
    assert!(payments.callee.external && payments.callee.tls == Some(Tls::default()));
    assert_eq!(config.drain, DRAIN);
}

#[test]
fn all_faults_are_reported_with_line_and_path() {
    let text = "inbound: { listen: here, to: 10.0.0.1:1 }
outbound:
  - { callee: two words, listen: 0.0.0.0:50051, to: 'inventory' }
  - { callee: a, listen: 127.0.0.1:1, to: 'b:1', tls: { cert_file: c } }
  - { callee: a, listen: 127.0.0.1:1, to: 'b:0', retries: 3 }
drain: 2h
";
    let faults = read(text).unwrap_err();
    for part in [
        "line 1: inbound.listen: \"here\" must be ADDRESS:PORT",
        "line 1: inbound.to: 10.0.0.1:1 is not on loopback",
        "line 3: outbound[0].callee: ",
        "line 3: outbound[0].listen: 0.0.0.0:50051 is not on loopback",
        "line 3: outbound[0].to: \"inventory\" must be HOST:PORT",
        "line 4: outbound[1].tls: cert_file and key_file belong together",
        "line 5: outbound[2].",
        "line 6: drain: \"2h\" must be at most 1h",
    ] {
        assert!(faults.contains(part), "{part} is not in\n{faults}");
    }
}

#[test]
fn tls_of_callers_is_read() {
    let inbound = |tls: &str| {
        let text = format!("inbound: {{ listen: '0.0.0.0:1', to: '127.0.0.1:2', tls: {{ {tls} }} }}");
        read(&text).map(|config| config.inbound.unwrap().tls.unwrap())
    };
    let own = inbound("cert_file: a.pem, key_file: b.pem").unwrap();
    assert_eq!(
        (own.files.cert_file.to_str(), own.files.client_ca_file, own.peer),
        (Some("a.pem"), None, None)
    );
    for (text, peer) in [("forward", Peer::Forward), ("drop", Peer::Drop)] {
        let tls = format!("cert_file: a, key_file: b, client_ca_file: c, peer: {text}");
        assert_eq!(inbound(&tls).unwrap().peer, Some(peer));
    }
    for (tls, faults) in [
        ("", &["tls.cert_file: required", "tls.key_file: required"][..]),
        (
            "client_ca_file: ''",
            &["cert_file: required", "key_file: required", "client_ca_file: required", "peer: req"],
        ),
        ("cert_file: a, key_file: b, client_ca_file: c", &["inbound.tls.peer: required with client_ca_file"]),
        (
            "cert_file: a, key_file: b, client_ca_file: c, peer: yes",
            &["tls.peer: \"yes\" must be forward or drop"],
        ),
        (
            "cert_file: a, key_file: b, peer: drop",
            &["tls.peer: callers show a certificate only with client_ca"],
        ),
        ("cert_file: a, key_file: b, ca_file: c", &["ca_file"]),
    ] {
        let found = inbound(tls).unwrap_err();
        assert!(faults.iter().all(|fault| found.contains(fault)), "{tls}: {found}");
    }
}

#[test]
fn two_listeners_on_one_address_are_a_fault() {
    let text = "outbound:
  - { callee: a, listen: '127.0.0.1:1', to: 'b:1' }
  - { callee: c, listen: '127.0.0.1:1', to: 'd:1' }
";
    assert!(read(text).unwrap_err().contains("outbound[1].listen: 127.0.0.1:1 is the address of another"));
}

#[test]
fn listener_that_leads_to_itself_is_a_fault() {
    let text = "outbound: [{ callee: a, listen: '127.0.0.1:1', to: '127.0.0.1:1' }]";
    assert!(
        read(text).unwrap_err().contains("outbound[0].to: 127.0.0.1:1 is the address of the listener itself")
    );
}

#[test]
fn configuration_without_listeners_is_a_fault() {
    assert!(read("service: a").unwrap_err().contains("inbound: required"));
}

#[test]
fn ports_that_are_not_on_loopback_need_permission() {
    let callee = "outbound: [{ callee: a, listen: '127.0.0.1:1', to: 'b:1' }]";
    for (path, text) in [
        ("outbound[0].listen", "outbound: [{ callee: a, listen: '0.0.0.0:1', to: 'b:1' }]".to_owned()),
        ("outbound[0].listen", "outbound: [{ callee: a, listen: '[::]:1', to: 'b:1' }]".to_owned()),
        ("inbound.to", "inbound: { listen: '127.0.0.1:1', to: '10.0.0.1:2' }".to_owned()),
        ("admin", format!("{callee}\nadmin: '10.0.0.1:7801'")),
    ] {
        let faults = read(&text).unwrap_err();
        assert!(
            faults.contains(&format!("{path}: ")) && faults.contains("--insecure-allow-remote"),
            "{faults}"
        );
        assert!(Config::read(&text, ReadConfig { allow_remote: true }).is_ok(), "{text}");
    }
    assert!(read("inbound: { listen: '0.0.0.0:1', to: '127.0.0.1:2' }").is_ok(), "callers are elsewhere");
}

#[test]
fn hosts_of_connect_have_names_of_callees() {
    let text = "connect:
  listen: 127.0.0.1:7800
  namespace: shop
  callees:
    - { host: 'inventory.shop.svc.cluster.local:50051', tls: {} }
    - { host: 'payments.example:443' }
    - { host: 'server.test:1', callee: greeter, to: '127.0.0.1:2', external: false }
";
    let connect = read(text).unwrap().connect.unwrap();
    let hosts: Vec<_> = connect
        .callees
        .iter()
        .map(|host| (&*host.callee.name, &*host.callee.to, host.callee.external))
        .collect();
    let expected = [
        ("inventory", "inventory.shop.svc.cluster.local:50051", false),
        ("payments", "payments.example:443", true),
        ("greeter", "127.0.0.1:2", false),
    ];
    assert_eq!(hosts, expected);
}

#[test]
fn faults_of_connect_are_reported_together() {
    let text = "connect:
  listen: 0.0.0.0:7800
  suffix: .local
  callees:
    - { host: 'payments' }
    - { host: 'a:1' }
    - { host: 'A:1', to: 'b' }
";
    let faults = read(text).unwrap_err();
    for part in [
        "connect.listen: 0.0.0.0:7800 is not on loopback",
        "connect.suffix: must be a name",
        "connect.callees[0].host: \"payments\" must be HOST:PORT",
        "connect.callees[2].host: \"A:1\" is there twice",
        "connect.callees[2].to: \"b\" must be HOST:PORT",
    ] {
        assert!(faults.contains(part), "{part} is not in\n{faults}");
    }
}
