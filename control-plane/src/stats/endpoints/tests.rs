use std::sync::Arc;

use crate::stats::endpoints::*;

fn endpoint(port: u16, recent: u32, recent_failures: u32) -> v1::EndpointReport {
    v1::EndpointReport {
        address: format!("10.0.0.{port}:80"),
        zone: String::new(),
        connected: true,
        ejected: false,
        in_flight: 1,
        recent,
        recent_failures,
    }
}

fn report(callee: &str, worst: Vec<v1::EndpointReport>) -> v1::EndpointsReport {
    v1::EndpointsReport { callee_service: callee.to_owned(), count: worst.len() as u32, worst }
}

/// The merged endpoints of the only callee after these reports of one process each.
fn merged(reports: &[v1::EndpointsReport]) -> v1::CalleeEndpoints {
    let read = |part: &v1::EndpointsReport| {
        (Arc::from(part.callee_service.as_str()), Arc::new(Callee::read(part).unwrap()))
    };
    let told: Vec<_> = reports.iter().map(read).collect();
    let mut callees = merged::merge(&told);
    assert_eq!(callees.len(), 1);
    callees.remove(0)
}

fn addresses(callee: &v1::CalleeEndpoints) -> Vec<&str> {
    callee.endpoints.iter().map(|endpoint| endpoint.address.as_str()).collect()
}

#[test]
fn one_of_three_that_fails_is_named_first_with_what_all_clients_know() {
    let bad = v1::EndpointReport { ejected: true, zone: "a".to_owned(), ..endpoint(2, 5, 5) };
    let one = report("stock", vec![bad, endpoint(1, 32, 0), endpoint(3, 32, 1)]);
    let two = report("stock", vec![endpoint(2, 4, 4), endpoint(1, 32, 0), endpoint(3, 32, 0)]);
    let callee = merged(&[one, two]);
    assert_eq!((callee.clients, callee.count), (2, 3));
    assert_eq!(addresses(&callee), ["10.0.0.2:80", "10.0.0.3:80", "10.0.0.1:80"]);
    let v1::Endpoint { clients, ejected, not_connected, recent, recent_failures, in_flight, failing, .. } =
        callee.endpoints[0];
    assert_eq!((clients, ejected, not_connected), (2, 1, 0));
    assert_eq!((recent, recent_failures, in_flight, failing), (9, 9, 2, true));
    assert_eq!(
        callee.problem,
        "1 of 3 endpoints of stock fails 100.0% of its last requests: 10.0.0.2:80 (zone a); ejected by 1 of 2 clients"
    );
}

#[test]
fn nothing_is_wrong_with_endpoints_that_all_fail_alike_or_are_all_away() {
    let alike = report("stock", (1..=3).map(|port| endpoint(port, 32, 30)).collect());
    assert_eq!(merged(&[alike]).problem, "");
    let away = |port| v1::EndpointReport { connected: false, ..endpoint(port, 0, 0) };
    assert_eq!(merged(&[report("stock", (1..=3).map(away).collect())]).problem, "");
}

#[test]
fn one_client_of_many_that_ejects_says_more_about_that_client() {
    let ejected = v1::EndpointReport { ejected: true, ..endpoint(1, 5, 5) };
    let one = report("stock", vec![ejected, endpoint(2, 32, 0)]);
    let well = report("stock", vec![endpoint(1, 32, 0), endpoint(2, 32, 0)]);
    let callee = merged(&[one, well.clone(), well.clone(), well]);
    assert_eq!((callee.problem.as_str(), callee.endpoints[0].ejected), ("", 1));
}

#[test]
fn endpoints_that_nobody_is_connected_to_are_told_where_others_are() {
    let away = |port| v1::EndpointReport { connected: false, ..endpoint(port, 0, 0) };
    let one = report("stock", vec![away(1), away(2), endpoint(3, 32, 0)]);
    let two = report("stock", vec![away(1), away(2), endpoint(3, 32, 0)]);
    assert_eq!(
        merged(&[one.clone(), two]).problem,
        "2 of 3 endpoints of stock are not connected from any client: 10.0.0.1:80, 10.0.0.2:80"
    );
    let connected = report("stock", vec![endpoint(1, 9, 0), endpoint(2, 9, 0), endpoint(3, 9, 0)]);
    assert_eq!(merged(&[one, connected]).problem, "", "somebody is");
}

#[test]
fn who_knows_more_endpoints_than_it_names_counts_for_each_of_them() {
    let ejected = v1::EndpointReport { ejected: true, ..endpoint(1, 5, 5) };
    let many = |first| v1::EndpointsReport { count: 20, ..report("stock", vec![first]) };
    let callee = merged(&[many(ejected), many(endpoint(2, 32, 0)), many(endpoint(3, 32, 0))]);
    assert_eq!((callee.clients, callee.count, callee.problem.as_str()), (3, 20, ""));
    assert_eq!((callee.endpoints[0].clients, callee.endpoints[0].ejected), (3, 1));
}

#[test]
fn what_is_out_of_bounds_is_left_out_with_its_callee() {
    let wrong: [&dyn Fn(&mut v1::EndpointsReport); 9] = [
        &|part| part.callee_service = "a/b".to_owned(),
        &|part| part.worst = vec![endpoint(1, 0, 0); MAX_REPORTED + 1],
        &|part| part.count = 1,
        &|part| part.count = 4_001,
        &|part| part.worst[0].address = "stock:80".to_owned(),
        &|part| part.worst[0].zone = "x".repeat(MAX_ZONE_BYTES + 1),
        &|part| part.worst[0].zone = "\u{1b}[2J".to_owned(),
        &|part| part.worst[0].recent = u32::MAX,
        &|part| part.worst[0].recent_failures = 33,
    ];
    let (mut endpoints, mut room) = (Endpoints::default(), 1 << 20);
    for (number, change) in wrong.into_iter().enumerate() {
        let sound = report("stock", vec![endpoint(1, 32, 0), endpoint(2, 32, 0)]);
        let mut part = v1::EndpointsReport { count: 100, ..sound };
        change(&mut part);
        assert!(!endpoints.take(&part, &mut room), "{number}");
    }
    assert_eq!((endpoints.bytes(), room), (0, 1 << 20));
}

#[test]
fn endpoints_of_one_process_keep_their_bounds() {
    let most = || (1..=MAX_REPORTED as u16).map(|port| endpoint(port, 32, 0)).collect::<Vec<_>>();
    let (mut endpoints, mut room) = (Endpoints::default(), 64 << 20);
    let taken = (0..3_000).filter(|n| endpoints.take(&report(&format!("callee-{n}"), most()), &mut room));
    assert_eq!(taken.count(), MAX_ROUTES);
    assert_eq!(endpoints.bytes() + room, 64 << 20);
    assert!(endpoints.bytes() < 2 << 20, "{}", endpoints.bytes());
    assert!(endpoints.take(&report("callee-0", vec![endpoint(1, 1, 1)]), &mut room), "a known one changes");
    assert!(endpoints.take(&report("callee-1", Vec::new()), &mut room), "and ends");
    assert!(endpoints.take(&report("another", most()), &mut room), "which makes room");
    assert_eq!(endpoints.bytes() + room, 64 << 20);
    assert_eq!(endpoints.to_report().len(), MAX_ROUTES);
    room += endpoints.forget();
    assert_eq!((endpoints.bytes(), room), (0, 64 << 20));

    let mut none = 100;
    assert!(!Endpoints::default().take(&report("stock", most()), &mut none));
    assert_eq!(none, 100);
}

#[test]
fn of_one_callee_a_hundred_endpoints_are_told_and_all_are_counted() {
    let one = |n: u16| {
        let address = format!("10.0.{}.{}:80", n / 200, n % 200);
        report("stock", vec![v1::EndpointReport { address, ..endpoint(1, 32, 0) }])
    };
    let callee = merged(&(0..500).map(one).collect::<Vec<_>>());
    assert_eq!((callee.clients, callee.count, callee.endpoints.len()), (500, 500, 100));
}
