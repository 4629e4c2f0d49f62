//! Bounds of the worst chain through each edge, for all edges at once.
//!
//! A write is checked by every edge; to search the worst path of each of thousands would take minutes. One
//! pass in call order finds the costs that arrive at each service, one pass against it the gain of a request
//! there ([`Gain`]). The worst of an edge is the worst combination of both. As in `worst_path` smaller costs
//! are dropped, an edge that closes a cycle is used as a last hop, and paths through cycles are tried up to a
//! number of steps.

use damper_core::chain::bound::{DownstreamGain, Sends};

use crate::graph::edges::{Edge, Graph};
use crate::graph::worst_path::{CallOrder, PathCost as _, PathSearch};

/// The most arrivals, and the most gains, kept per service.
const KEPT: usize = 32;

/// The attempts on the last hop of the worst chain through each edge.
pub(crate) fn through(graph: &Graph) -> Vec<u64> {
    let order = CallOrder::of(graph);
    let arriving = arriving(graph, &order);
    let going_on = going_on(graph, &order);
    let worst = |number: usize, edge: &Edge| {
        let behind: &[DownstreamGain] =
            if order.closing[number] { &[DownstreamGain::END] } else { &going_on[edge.callee] };
        let arrivals = arriving[edge.caller].iter().map(|sends| edge.hops.carry(*sends));
        arrivals.flat_map(|sends| behind.iter().map(move |gain| gain.of(sends))).max().unwrap_or(1)
    };
    let mut all: Vec<u64> =
        graph.edges.iter().enumerate().map(|(number, edge)| worst(number, edge)).collect();
    if order.has_circle() {
        let trial = PathSearch::<Sends>::of(graph, &|_| false);
        for (worst, tried) in all.iter_mut().zip(trial.through) {
            *worst = tried.map_or(*worst, |tried| tried.all().max(*worst));
        }
    }
    all
}

/// Returns the costs that arrive at each service.
fn arriving(graph: &Graph, order: &CallOrder) -> Vec<Vec<Sends>> {
    let mut at = vec![vec![Sends::START]; graph.services.len()];
    for service in &order.services {
        for number in graph.leaving[*service].iter().filter(|number| !order.closing[**number]) {
            let edge = &graph.edges[*number];
            for sends in at[*service].clone() {
                keep(&mut at[edge.callee], edge.hops.carry(sends), Sends::covers, |sends| sends.all());
            }
        }
    }
    at
}

/// Returns the gains of a request at each service.
fn going_on(graph: &Graph, order: &CallOrder) -> Vec<Vec<DownstreamGain>> {
    let mut at = vec![vec![DownstreamGain::END]; graph.services.len()];
    for service in order.services.iter().rev() {
        for number in &graph.leaving[*service] {
            let edge = &graph.edges[*number];
            let behind =
                if order.closing[*number] { vec![DownstreamGain::END] } else { at[edge.callee].clone() };
            for gain in behind.into_iter().flat_map(|gain| edge.hops.gains(gain)) {
                keep(&mut at[*service], gain, DownstreamGain::covers, |gain| gain.of(Sends::ONE));
            }
        }
    }
    at
}

fn keep<T: Copy>(kept: &mut Vec<T>, new: T, covers: impl Fn(T, T) -> bool, size: impl Fn(T) -> u64) {
    if kept.iter().any(|other| covers(*other, new)) {
        return;
    }
    kept.retain(|other| !covers(new, *other));
    if kept.len() == KEPT {
        let least = kept.iter().enumerate().min_by_key(|(_, other)| size(**other));
        let Some((place, _)) = least else { return };
        kept.swap_remove(place);
    }
    kept.push(new);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use damper_core::chain::bound::{Flag, Hop};

    use super::*;
    use crate::graph::worst_path::worst;

    /// Pseudo-random numbers, the same in each run (xorshift).
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 33) as usize % end
        }

        fn hop(&mut self) -> Hop {
            let flag = [Flag::Kept, Flag::Ignored, Flag::Lost][self.below(3)];
            Hop { max_attempts: 1 + self.below(4) as u32, flag }
        }
    }

    #[test]
    fn every_edge_has_what_a_search_for_it_alone_finds() {
        let names = ["a", "b", "c", "d", "e", "f"];
        for seed in 1..2_000_u64 {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut edges = BTreeMap::new();
            for _ in 0..=dice.below(12) {
                edges.insert((names[dice.below(6)], names[dice.below(6)]), dice.hop());
            }
            let edges: Vec<_> =
                edges.iter().map(|((caller, callee), hop)| (*caller, *callee, *hop, 1.0)).collect();
            let mut graph = Graph::drawn(&edges);
            // Edges of several routes.
            for _ in 0..dice.below(4) {
                let place = dice.below(graph.edges.len());
                graph.edges[place].hops.add(dice.hop());
            }
            let alone: Vec<u64> = (0..graph.edges.len())
                .map(|wanted| worst::<Sends>(&graph, &|edge| edge == wanted).unwrap().burden.all())
                .collect();
            assert_eq!(through(&graph), alone, "seed {seed}");
        }
    }
}
