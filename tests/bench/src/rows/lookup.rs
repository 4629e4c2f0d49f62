//! Finding the rule that applies to a route, among few and many; and what a rule takes in memory.
//!
//! Routes are looked up when they are first seen and when the table changes; a call finds its route in a map of the
//! process's own routes, which does not grow with the number of rules (that is in the row of the layer). The table is
//! asked for as many routes as a process may have, spread over all of it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use damper_core::{MAX_ROUTES, Mode, Pattern, Policy, Retry, RouteKey, Rule, Table};
use damper_tests::spread::Spread;

use super::{Size, layer};
use crate::figure::{Chart, Figure, Point, Row, Series, Target};
use crate::rounds::interleaved;

/// What the caller calls itself.
const CALLER: &str = "orders";

pub(super) async fn measure(size: Size) -> Result<(usize, Row)> {
    let sizes: &[usize] = size.pick(&[100, 1_000], &[100, 10_000, 100_000], &[100, 1_000, 10_000, 100_000]);
    let rounds = size.pick(2, 31, 101);
    let policy = Policy { retry: Some(Retry::default()), ..Policy::new(Mode::Enforce) };
    let tables = sizes.iter().map(|&rules| Ok((table_of(rules, &policy)?, routes(rules)?)));
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let indices: Vec<usize> = (0..tables.len()).collect();
    let timed = interleaved(rounds, &indices, |index| {
        let (table, routes) = tables.get(index).context("there is a table for each")?;
        look_up(table, routes)
    })?;
    let mut row = Row::new("lookup", "Policy look-up").note(format!(
        "The table is asked for {MAX_ROUTES} routes in turn, as many as one process may have, spread over all of it; \
         each rule names caller, callee and method. That happens when a route is first seen and when the table changes; \
         a call finds its route in a map of the process's own routes, whatever the number of rules.",
    ));
    let few = timed.first().map_or(&[][..], Vec::as_slice);
    let mut points = Vec::new();
    for (&rules, timed) in sizes.iter().zip(&timed) {
        let figure = Figure::beside(format!("time, {rules} rules"), "ns", timed, "100 rules", few);
        points.push(Point { name: String::new(), x: rules as f64, y: figure.ours });
        row = row.with(figure.aim(Target::RatioAtMost(1.2)));
    }
    for &rules in sizes {
        let counted = layer::count(&["table", "--rules", &rules.to_string()]).await?;
        let bytes = Spread::exactly(counted.as_f64().context("a number of bytes")?);
        let figure = Figure::new(format!("memory per rule in the table, {rules} rules"), "B", bytes);
        row = row.with(figure.aim(Target::AtMost(1_024.0)));
    }
    let chart = Chart {
        name: "lookup".to_owned(),
        title: "Finding the rule of a route among many".to_owned(),
        x: Some("rules in the table".to_owned()),
        y: "ns per look-up".to_owned(),
        series: vec![Series { name: "look-up in the table".to_owned(), points }],
    };
    Ok((rounds, row.draw(chart)))
}

/// Nanoseconds per look-up.
fn look_up(table: &Table, routes: &[RouteKey]) -> Result<f64> {
    const LAPS: usize = 10;
    let begun = Instant::now();
    for route in (0..LAPS).flat_map(|_| routes) {
        black_box(table.in_force(black_box(route))).context("every route has a rule")?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / (LAPS * routes.len()) as f64)
}

/// Rules such as people write, each for a method of its own.
///
/// # Errors
/// The names are no names.
pub fn table_of(rules: usize, policy: &Policy) -> Result<Table> {
    let rule = |place| {
        let (callee, method) = names(place);
        let pattern = Pattern::parse(CALLER, "*", &callee, &method)?;
        Ok(Arc::new(Rule::new(pattern, policy.clone(), place as u64 + 1)?))
    };
    (0..rules).map(rule).collect()
}

/// The route that the rule at this place is for.
pub(super) fn route_of(place: usize) -> Result<RouteKey> {
    let (callee, method) = names(place);
    Ok(RouteKey::new(CALLER, "default", &callee, &method)?)
}

/// Routes at places all over the table, in no order.
fn routes(rules: usize) -> Result<Vec<RouteKey>> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..MAX_ROUTES).map(|_| route_of(random.usize(..rules))).collect()
}

fn names(place: usize) -> (String, String) {
    (format!("callee-{:04}", place / 10), format!("shop.v1.Service{:04}/Method{}", place / 10, place % 10))
}
