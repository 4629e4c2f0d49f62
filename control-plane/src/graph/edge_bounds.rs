//! How bad the worst chain through each edge is, for all edges at once.
//!
//! A write is judged by every edge; to search the worst path for each of thousands would take minutes. One walk in
//! the order of the calls tells what can arrive at each service, one walk against it what a request there can come
//! to ([`Gain`]); an edge's worst is the worst of both put together. As in `search` what is certainly the lesser
//! is dropped, an edge that closes a circle is taken as a last hop, and paths through circles are tried for so
//! many steps.

use damper_core::chain::bound::{DownstreamGain, Sends};

use crate::graph::edges::{Edge, Graph};
use crate::graph::worst_path::{CallOrder, PathCost as _, PathSearch};

/// So many arrivals, and as many ways on, are kept at a service.
const KEPT: usize = 32;

/// The sends on the last hop of the worst chain through each edge.
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

/// What can arrive at each service.
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

/// What a request at each service can come to.
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

    /// Numbers that look random and are the same each time (xorshift).
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
