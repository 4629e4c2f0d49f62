//! Predicted effect of a set: a row for each route and state of its callee, before and after. Notes go to
//! stderr.

use damper_proto::v1::{self, prediction::Callee};

use crate::error::{CliError, print_message};
use crate::input::key;
use crate::output::amplification as amplified;
use crate::output::figures::{many, rate, rules_and_guards, share, time};
use crate::output::{Align, Format, Table, printable, show};

/// Replaces the caller in the total.
const ALL: &str = "(all)";

/// Column of the worst case.
const P99: usize = 6;

/// Prints a prediction.
pub(crate) fn report(format: Format, response: &v1::WhatIfResponse) -> Result<(), CliError> {
    show(format, response, || {
        // Without a route there is no table.
        if response.routes.is_empty() { String::new() } else { table(response).to_string() }
    })?;
    notes(response).into_iter().for_each(print_message);
    Ok(())
}

fn table(v1::WhatIfResponse { routes, together, .. }: &v1::WhatIfResponse) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CALLER", Left),
        ("CLUSTER", Left),
        ("CALLEE", Left),
        ("METHOD", Left),
        ("CALLEE-IS", Left),
        ("CALLS/S", Right),
        ("LOAD/S", Right),
        ("EXTRA/S", Right),
        ("SUCCESS", Right),
        ("GAIN", Right),
        ("P99", Right),
        ("WORST-CASE", Right),
    ]);
    for route in routes {
        let worst = worst_case(route);
        for predicted in &route.predictions {
            let figures = figures(predicted, route.calls_per_s, &worst);
            table.row(key::route_columns(route.route.as_ref()).into_iter().chain(figures));
        }
    }
    if routes.len() > 1 {
        let calls_per_s = routes.iter().map(|route| route.calls_per_s).sum();
        for predicted in together {
            let key = [ALL, "", "", ""].map(str::to_owned);
            let mut figures = figures(predicted, calls_per_s, "");
            // Known for single routes only.
            figures[P99].clear();
            table.row(key.into_iter().chain(figures));
        }
    }
    table
}

fn figures(predicted: &v1::Prediction, calls_per_s: f64, worst: &str) -> [String; 8] {
    let [before, after] = [predicted.before, predicted.after].map(Option::unwrap_or_default);
    let extra = after.attempts_per_s - before.attempts_per_s;
    let gain = (after.success_share - before.success_share) * 100.0;
    [
        callee(predicted.callee()).to_owned(),
        rate(calls_per_s),
        became(&rate(before.attempts_per_s), &rate(after.attempts_per_s)),
        signed(extra, ""),
        became(&share(before.success_share), &share(after.success_share)),
        signed(gain, "pp"),
        became(&p99(before), &p99(after)),
        worst.to_owned(),
    ]
}

/// Without successes there is no latency.
fn p99(side: v1::Predicted) -> String {
    if side.p99.is_some() { time(side.p99.as_ref()) } else { "none".to_owned() }
}

/// State of the callee.
fn callee(callee: Callee) -> &'static str {
    match callee {
        Callee::Unspecified => "",
        Callee::AsMeasured => "as-measured",
        Callee::TenthFailing => "at-least-10%-failing",
        Callee::Outage => "outage",
    }
}

/// Most attempts of a call.
fn worst_case(route: &v1::RoutePrediction) -> String {
    let most = |side: &Option<v1::Amplification>| {
        side.as_ref().and_then(|side| side.bound).map_or(1, |bound| bound.max_attempts).to_string()
    };
    became(&most(&route.before), &most(&route.after))
}

/// Before and after in one cell.
fn became(before: &str, after: &str) -> String {
    if before == after { before.to_owned() } else { format!("{before}->{after}") }
}

/// Number with its sign, but 0.0 without.
fn signed(value: f64, unit: &str) -> String {
    let text = format!("{value:+.1}{unit}");
    if text[1..] == format!("0.0{unit}") { text[1..].to_owned() } else { text }
}

fn notes(response: &v1::WhatIfResponse) -> Vec<String> {
    let mut lines = Vec::new();
    for route in &response.routes {
        let words = key::route_columns(route.route.as_ref()).join(" ");
        lines.extend(bounds(&words, route.before.as_ref(), route.after.as_ref()));
    }
    if response.routes_left_out > 0 {
        let left_out = many(response.routes_left_out as usize, "less busy route");
        lines.push(format!("{left_out} would change, not predicted"));
    }
    for v1::WithoutTraffic { key, guard, before, after } in &response.without_traffic {
        let (kind, limits) = if *guard { ("guard ", "; retry limits are not predicted") } else { ("", "") };
        let words = format!("{kind}{}", key::words(key.as_ref()));
        lines.push(format!(
            "{}: no effect on calls of the last minute{limits}; services report every few seconds",
            printable(&words)
        ));
        let side = |bound: &Option<v1::Bound>| v1::Amplification { bound: *bound, chain: None };
        lines.extend(bounds(&words, Some(&side(before)), Some(&side(after))));
    }
    let untold = (response.without_traffic_total as usize).saturating_sub(response.without_traffic.len());
    if untold > 0 {
        lines.push(format!("{} without effect on recent calls not listed", rules_and_guards(untold)));
    }
    if response.routes.is_empty() && response.without_traffic_total == 0 {
        lines.push("no policy of a route would change".to_owned());
    }
    lines.push(format!("predicted at revision {}, nothing was changed", response.revision));
    lines
}

fn bounds(
    words: &str,
    before: Option<&v1::Amplification>,
    after: Option<&v1::Amplification>,
) -> impl Iterator<Item = String> {
    let lines = before.zip(after).map(|(before, after)| amplified::lines(before, after)).unwrap_or_default();
    lines.into_iter().map(move |line| printable(&format!("{words}: {line}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(attempts_per_s: f64, success_share: f64, p99_ms: Option<i32>) -> Option<v1::Predicted> {
        let p99 = p99_ms.map(|ms| prost_types::Duration { seconds: 0, nanos: ms * 1_000_000 });
        Some(v1::Predicted { attempts_per_s, success_share, p99, attempts_per_call: attempts_per_s / 100.0 })
    }

    fn prediction(
        callee: Callee,
        before: Option<v1::Predicted>,
        after: Option<v1::Predicted>,
    ) -> v1::Prediction {
        v1::Prediction { callee: callee.into(), before, after }
    }

    fn response() -> v1::WhatIfResponse {
        let bound = |max_attempts| v1::Bound { max_attempts, ..Default::default() };
        let amplification = |most| Some(v1::Amplification { bound: Some(bound(most)), chain: None });
        let route = |caller: &str| v1::RoutePrediction {
            route: Some(v1::RouteKey {
                caller_service: caller.to_owned(),
                caller_cluster: "default".to_owned(),
                callee_service: "stock".to_owned(),
                callee_method: "p.S/M".to_owned(),
            }),
            calls_per_s: 100.0,
            predictions: vec![
                prediction(Callee::AsMeasured, side(100.0, 0.98, Some(60)), side(102.04, 0.9996, Some(80))),
                prediction(Callee::Outage, side(100.0, 0.0, None), side(118.0, 0.0, None)),
            ],
            before: amplification(1),
            after: amplification(3),
            ..Default::default()
        };
        v1::WhatIfResponse {
            revision: 7,
            routes: vec![route("shop"), route("till")],
            together: vec![prediction(Callee::Outage, side(200.0, 0.0, None), side(236.0, 0.0, None))],
            routes_left_out: 1,
            without_traffic: vec![v1::WithoutTraffic {
                key: Some(v1::Pattern {
                    caller_service: "desk".to_owned(),
                    caller_cluster: "*".to_owned(),
                    callee_service: "stock".to_owned(),
                    callee_method: "*".to_owned(),
                }),
                guard: false,
                before: Some(bound(1)),
                after: Some(bound(2)),
            }],
            without_traffic_total: 3,
        }
    }

    #[test]
    fn each_route_and_state_has_a_row_and_so_has_the_total() {
        let words: Vec<String> = table(&response())
            .to_string()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            [&words[1], &words[2], &words[5]],
            [
                "shop default stock p.S/M as-measured 100.0 100.0->102.0 +2.0 98.0%->99.9% +2.0pp 60ms->80ms 1->3",
                "shop default stock p.S/M outage 100.0 100.0->118.0 +18.0 0.0% 0.0pp none 1->3",
                "(all) - - - outage 200.0 200.0->236.0 +36.0 0.0% 0.0pp - -",
            ]
        );
    }

    #[test]
    fn unpredicted_changes_show_their_bound() {
        let lines = notes(&response());
        for line in [
            "1 less busy route would change, not predicted",
            "desk * stock *: no effect on calls of the last minute; services report every few seconds",
            "2 rules and guards without effect on recent calls not listed",
            "predicted at revision 7, nothing was changed",
        ] {
            assert!(lines.iter().any(|told| told == line), "{line}: {lines:#?}");
        }
        assert!(lines.iter().any(|told| told.starts_with("desk * stock *: more on this hop: at most 2 ")));
        assert!(lines.iter().any(|told| told.starts_with("shop default stock p.S/M: more on this hop: ")));
        let nothing = notes(&v1::WhatIfResponse::default());
        assert_eq!(nothing[0], "no policy of a route would change");
    }

    #[test]
    fn guard_notes_that_its_retry_limit_is_not_predicted() {
        let mut response = response();
        response.without_traffic[0].guard = true;
        let line = "guard desk * stock *: no effect on calls of the last minute; retry limits are \
                    not predicted; services report every few seconds";
        assert!(notes(&response).iter().any(|told| told == line), "{:#?}", notes(&response));
    }

    #[test]
    fn unchanged_values_have_no_sign_and_no_arrow() {
        assert_eq!([signed(0.04, ""), signed(-0.04, "%"), signed(-2.0, "%")], ["0.0", "0.0%", "-2.0%"]);
        assert_eq!([became("1", "1"), became("1", "2")], ["1", "1->2"]);
    }
}
