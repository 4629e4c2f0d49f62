//! Finds the path through a graph with the highest cost at its end.
//!
//! Without cycles the search is exact, in one pass in call order. Of the costs that arrive at a service, one
//! that another exceeds in every respect is dropped, because a higher cost at the start never leads to a
//! lower one at the end. In a cycle each service is visited once per path, and a path ends where it returns
//! to a service: that call is its last hop. The worst of such paths is found by trying them, up to a number
//! of steps; after that, edges that close cycles are only used as last hops. The work is bounded on any
//! graph.

use std::cmp::Ordering;

use damper_core::chain::bound::Sends;

use crate::graph::edges::{Edge, Graph};

/// The most edges tried in graphs with cycles.
const STEPS: usize = 100_000;
/// The longest path tried there.
const DEPTH: usize = 64;
/// The most costs kept per service; smaller ones are dropped.
const ARRIVALS: usize = 32;

/// The cost that is carried along a path.
pub(crate) trait PathCost: Copy {
    /// The cost at the top.
    const START: Self;
    /// The cost after an edge; `None` if the path cannot use it.
    fn over(self, edge: &Edge) -> Option<Self>;
    /// True if it is at least the other in every respect.
    fn covers(self, other: Self) -> bool;
    /// Compares two costs at the end of a path.
    fn compare(self, other: Self) -> Ordering;
}

impl PathCost for Sends {
    const START: Self = Self::ONE;

    fn over(self, edge: &Edge) -> Option<Self> {
        Some(edge.hops.carry(self))
    }

    fn covers(self, other: Self) -> bool {
        Sends::covers(self, other)
    }

    fn compare(self, other: Self) -> Ordering {
        self.all().cmp(&other.all())
    }
}

/// The product of measured amplifications.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredCost(pub(crate) f64);

impl PathCost for MeasuredCost {
    const START: Self = Self(1.0);

    fn over(self, edge: &Edge) -> Option<Self> {
        (edge.figures.calls > 0.0).then(|| Self(self.0 * edge.figures.amplification()))
    }

    fn covers(self, other: Self) -> bool {
        self.0 >= other.0
    }

    fn compare(self, other: Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A path and the cost at its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorstPath<B> {
    /// Its edges, from the top.
    pub(crate) path: Vec<usize>,
    pub(crate) burden: B,
}

impl<B: PathCost> WorstPath<B> {
    /// Returns the worse of two paths; of two with equal cost the longer one, which shows the whole chain.
    fn is_worse_than(&self, other: &Self) -> bool {
        self.burden.compare(other.burden).then(self.path.len().cmp(&other.path.len())).is_gt()
    }
}

/// Returns the worst path through one of the wanted edges.
pub(crate) fn worst<B: PathCost>(graph: &Graph, wanted: &dyn Fn(usize) -> bool) -> Option<WorstPath<B>> {
    let order = CallOrder::of(graph);
    let in_order = walk(graph, &order, wanted);
    if !order.has_circle() {
        return in_order;
    }
    match (PathSearch::of(graph, wanted).best, in_order) {
        (Some(tried), Some(walked)) if walked.is_worse_than(&tried) => Some(walked),
        (tried, walked) => tried.or(walked),
    }
}

/// Returns the services in an order with callers before callees, except for edges that close a cycle.
pub(crate) struct CallOrder {
    pub(crate) services: Vec<usize>,
    pub(crate) closing: Vec<bool>,
}

impl CallOrder {
    pub(crate) fn has_circle(&self) -> bool {
        self.closing.contains(&true)
    }

    pub(crate) fn of(graph: &Graph) -> Self {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; graph.services.len()];
        let mut closing = vec![false; graph.edges.len()];
        let mut services = Vec::with_capacity(graph.services.len());
        for start in 0..graph.services.len() {
            if marks[start] != Mark::New {
                continue;
            }
            marks[start] = Mark::Open;
            let mut stack = vec![(start, 0)];
            while let Some((service, next)) = stack.pop() {
                let Some(edge) = graph.leaving[service].get(next) else {
                    marks[service] = Mark::Done;
                    services.push(service);
                    continue;
                };
                stack.push((service, next + 1));
                let callee = graph.edges[*edge].callee;
                match marks[callee] {
                    Mark::New => {
                        marks[callee] = Mark::Open;
                        stack.push((callee, 0));
                    }
                    Mark::Open => closing[*edge] = true,
                    Mark::Done => {}
                }
            }
        }
        services.reverse();
        Self { services, closing }
    }
}

/// The cost that arrives at a service on one path.
#[derive(Clone, Copy)]
struct Arrival<B> {
    burden: B,
    length: usize,
    /// True if the path used a wanted edge.
    passed: bool,
    /// The last edge, and the number of the arrival before it; `None` at the top.
    by: Option<(usize, usize)>,
}

impl<B: PathCost> Arrival<B> {
    fn covers(&self, other: &Self) -> bool {
        let no_shorter = self.length >= other.length || !other.burden.covers(self.burden);
        self.passed >= other.passed && self.burden.covers(other.burden) && no_shorter
    }
}

fn walk<B: PathCost>(
    graph: &Graph,
    order: &CallOrder,
    wanted: &dyn Fn(usize) -> bool,
) -> Option<WorstPath<B>> {
    let top = Arrival { burden: B::START, length: 0, passed: false, by: None };
    // Arrivals are never removed, so that their numbers stay valid; `at` lists those that count.
    let mut all = vec![top];
    let mut at: Vec<Vec<usize>> = vec![vec![0]; graph.services.len()];
    // An arrival that returns to its service goes no further.
    let mut closed = Vec::new();
    for service in &order.services {
        for edge in &graph.leaving[*service] {
            let callee = graph.edges[*edge].callee;
            for before in at[*service].clone() {
                let Arrival { burden, length, passed, .. } = all[before];
                let Some(burden) = burden.over(&graph.edges[*edge]) else { continue };
                let passed = passed || wanted(*edge);
                let arrival = Arrival { burden, length: length + 1, passed, by: Some((*edge, before)) };
                let here = if order.closing[*edge] { &mut closed } else { &mut at[callee] };
                arrive(&mut all, here, arrival);
            }
        }
    }
    let ends = at.iter().flatten().chain(&closed).copied().filter(|end| all[*end].passed);
    let worst = ends.max_by(|a, b| {
        let (a, b) = (&all[*a], &all[*b]);
        a.burden.compare(b.burden).then(a.length.cmp(&b.length))
    })?;
    Some(WorstPath { path: way(&all, worst), burden: all[worst].burden })
}

fn arrive<B: PathCost>(all: &mut Vec<Arrival<B>>, here: &mut Vec<usize>, arrival: Arrival<B>) {
    if here.iter().any(|other| all[*other].covers(&arrival)) {
        return;
    }
    here.retain(|other| !arrival.covers(&all[*other]));
    if here.len() == ARRIVALS {
        let least = here.iter().enumerate().min_by(|(_, a), (_, b)| all[**a].burden.compare(all[**b].burden));
        let Some((place, _)) = least else { return };
        here.swap_remove(place);
    }
    here.push(all.len());
    all.push(arrival);
}

fn way<B: Copy>(all: &[Arrival<B>], end: usize) -> Vec<usize> {
    let mut path = Vec::new();
    let mut at = end;
    while let Some((edge, before)) = all[at].by {
        path.push(edge);
        at = before;
    }
    path.reverse();
    path
}

/// Paths tried one by one, with each service once except for the end of the path.
pub(crate) struct PathSearch<'a, B> {
    graph: &'a Graph,
    wanted: &'a dyn Fn(usize) -> bool,
    steps: usize,
    visited: Vec<bool>,
    path: Vec<usize>,
    best: Option<WorstPath<B>>,
    /// The highest cost at the end of a path over each edge.
    pub(crate) through: Vec<Option<B>>,
}

impl<'a, B: PathCost> PathSearch<'a, B> {
    pub(crate) fn of(graph: &'a Graph, wanted: &'a dyn Fn(usize) -> bool) -> Self {
        let mut trial = Self {
            graph,
            wanted,
            steps: STEPS,
            visited: vec![false; graph.services.len()],
            path: Vec::new(),
            best: None,
            through: vec![None; graph.edges.len()],
        };
        for service in 0..graph.services.len() {
            trial.follow(service, B::START, false);
        }
        trial
    }
}

fn worse<B: PathCost>(one: B, other: B) -> B {
    if one.compare(other).is_ge() { one } else { other }
}

impl<B: PathCost> PathSearch<'_, B> {
    /// Follows all paths from a service; returns the highest cost at their ends.
    fn follow(&mut self, service: usize, burden: B, passed: bool) -> B {
        self.end(burden, passed);
        let mut worst_end = burden;
        if self.path.len() == DEPTH {
            return worst_end;
        }
        self.visited[service] = true;
        for edge in &self.graph.leaving[service] {
            if self.steps == 0 {
                break;
            }
            self.steps -= 1;
            let Some(burden) = burden.over(&self.graph.edges[*edge]) else { continue };
            let next = self.graph.edges[*edge].callee;
            let passed = passed || (self.wanted)(*edge);
            self.path.push(*edge);
            let end = if self.visited[next] {
                self.end(burden, passed);
                burden
            } else {
                self.follow(next, burden, passed)
            };
            self.path.pop();
            self.through[*edge] = Some(self.through[*edge].map_or(end, |before| worse(end, before)));
            worst_end = worse(worst_end, end);
        }
        self.visited[service] = false;
        worst_end
    }

    fn end(&mut self, burden: B, passed: bool) {
        if passed {
            let found = WorstPath { path: self.path.clone(), burden };
            if self.best.as_ref().is_none_or(|best| found.is_worse_than(best)) {
                self.best = Some(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use damper_core::chain::bound::{Flag, Hop};

    use super::*;

    fn kept(max_attempts: u32) -> Hop {
        Hop { max_attempts, flag: Flag::Kept }
    }

    fn lost(max_attempts: u32) -> Hop {
        Hop { max_attempts, flag: Flag::Lost }
    }

    fn services(graph: &Graph, path: &[usize]) -> String {
        let first = path.first().map(|edge| graph.edges[*edge].caller);
        let rest = path.iter().map(|edge| graph.edges[*edge].callee);
        first.into_iter().chain(rest).map(|service| &*graph.services[service]).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(edges: &[(&str, &str, Hop)], path: &str, sends: u64) {
        let edges: Vec<_> = edges.iter().map(|(caller, callee, hop)| (*caller, *callee, *hop, 1.0)).collect();
        let graph = Graph::drawn(&edges);
        let found = worst::<Sends>(&graph, &|_| true).unwrap();
        assert_eq!((services(&graph, &found.path).as_str(), found.burden.all()), (path, sends));
    }

    #[test]
    fn worst_path_is_the_one_with_most_sends_at_its_end() {
        check(&[("a", "b", kept(3)), ("b", "c", kept(3)), ("b", "d", kept(2))], "a b c", 5);
        check(&[("a", "b", kept(3)), ("b", "c", lost(3)), ("x", "b", kept(5))], "x b c", 15);
        // Fewer attempts at first, but all of them count as first attempts further down.
        check(
            &[("a", "m", kept(9)), ("b", "c", kept(3)), ("c", "m", lost(2)), ("m", "z", kept(10))],
            "b c m z",
            33,
        );
    }

    #[test]
    fn of_paths_that_are_as_bad_the_longer_one_is_told() {
        check(&[("a", "b", kept(1)), ("b", "c", kept(3)), ("c", "d", kept(1))], "a b c d", 3);
    }

    #[test]
    fn only_paths_through_a_wanted_edge_count() {
        let edges = [("a", "b", kept(9), 1.0), ("c", "b", kept(2), 1.0), ("b", "d", kept(3), 1.0)];
        let graph = Graph::drawn(&edges);
        let through = |wanted: usize| worst::<Sends>(&graph, &|edge| edge == wanted).unwrap();
        assert_eq!(services(&graph, &through(1).path), "c b d");
        assert_eq!(services(&graph, &through(2).path), "a b d");
        assert_eq!(worst::<Sends>(&graph, &|_| false), None);
    }

    #[test]
    fn each_service_of_a_circle_is_followed_once_and_the_call_back_is_the_last_hop() {
        let circle = [("a", "b", kept(3)), ("b", "c", kept(3)), ("c", "a", kept(3))];
        let edges: Vec<_> =
            circle.iter().map(|(caller, callee, hop)| (*caller, *callee, *hop, 1.0)).collect();
        let graph = Graph::drawn(&edges);
        let found = worst::<Sends>(&graph, &|_| true).unwrap();
        assert_eq!((found.path.len(), found.burden.all()), (3, 7), "the call back is the last hop");
        assert!((0..3).all(|service| graph.returns_to(service)));
        // A search without closing edges would begin at a; the worst path uses the closing edge.
        check(&[("a", "b", kept(2)), ("b", "a", lost(4)), ("a", "c", lost(5))], "b a c", 20);
        check(&[("a", "a", kept(9)), ("a", "b", kept(2))], "a a", 9);
        check(&[("x", "a", kept(2)), ("a", "a", kept(3))], "x a a", 4);
    }

    #[test]
    fn the_work_is_bounded_on_any_graph() {
        let names: Vec<String> = (0..60).map(|n| format!("s{n}")).collect();
        let mut edges = Vec::new();
        for caller in &names {
            for callee in &names {
                edges.push((caller.as_str(), callee.as_str(), lost(10), 1.0));
            }
        }
        let found = worst::<Sends>(&Graph::drawn(&edges), &|_| true).unwrap();
        assert_eq!(found.burden.all(), u64::MAX, "10^59 does not fit");
        let layers: Vec<_> = (0..2_000)
            .flat_map(|n| [(n, n + 1, 2_u32), (n, n + 2, 3)])
            .map(|(caller, callee, attempts)| (format!("n{caller}"), format!("n{callee}"), attempts))
            .collect();
        let layers: Vec<_> = layers
            .iter()
            .map(|(caller, callee, attempts)| (caller.as_str(), callee.as_str(), kept(*attempts), 1.0))
            .collect();
        let found = worst::<Sends>(&Graph::drawn(&layers), &|_| true).unwrap();
        assert_eq!(
            found.burden.all(),
            2_002,
            "two a step of two, or one a step of one; the last step is of two"
        );
    }

    #[test]
    fn measured_path_is_the_greatest_product_and_rests_where_nothing_is_called() {
        let idle = ("c", "d", kept(9), f64::NAN);
        let mut graph = Graph::drawn(&[("a", "b", kept(1), 1.5), ("b", "c", kept(1), 2.0), idle]);
        graph.edges[2].figures.calls = 0.0;
        let found = worst::<MeasuredCost>(&graph, &|_| true).unwrap();
        assert_eq!((services(&graph, &found.path).as_str(), found.burden), ("a b c", MeasuredCost(3.0)));
    }
}
