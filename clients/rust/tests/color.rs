//! The search, which needs nothing else.

use std::time::{Duration, Instant};

use coloring_gnn::{Budget, Coloring, Error, Graph, MODEL, Rule, color};

mod common;
use common::{checked, from_pairs, queens};

#[test]
fn a_clique_ends_the_search_before_its_time() {
    let (hours, begin) = (Budget::seconds(36_000.0), Instant::now());
    let used = |graph: &Graph, budget: &Budget| checked(graph, &color(graph, budget));
    assert_eq!(used(&from_pairs(1, |_, _| false), &hours), 1);
    assert_eq!(used(&from_pairs(40, |_, _| false), &hours), 1);
    assert_eq!(used(&from_pairs(300, |u, v| u == v + 1), &hours), 2);
    assert_eq!(used(&from_pairs(260, |_, _| true), &hours), 260);
    assert_eq!(used(&queens(7), &hours), 7); // DSATUR needs more
    assert_eq!(used(&queens(8), &Budget { target: 9, threads: 2, ..hours.clone() }), 9);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_time_is_kept_and_every_coloring_is_better_than_the_last() {
    let mix = |u: usize, v: usize| (u as u32 * 65_536 + v as u32).wrapping_mul(2_654_435_761).reverse_bits();
    let graph = from_pairs(800, |u, v| mix(u, v).wrapping_mul(2_654_435_761) >> 31 == 0); // takes independent sets, too
    for (seconds, threads) in [(0.0, 1), (1.0, 1), (1.0, 3)] {
        let (begin, mut numbers) = (Instant::now(), Vec::new());
        let budget = Budget { threads, ..Budget::seconds(seconds) };
        let best = Rule::default().color(&graph, &budget, |coloring, method| {
            assert_eq!(numbers.is_empty(), method == "DSATUR");
            numbers.push(graph.check(coloring.colors()).unwrap());
        });
        assert!(begin.elapsed() < Duration::from_secs_f64(seconds + 5.0));
        assert!(numbers.is_sorted_by(|a, b| a > b) && *numbers.last().unwrap() == best.num_colors(), "{numbers:?}");
        assert!(seconds == 0.0 || numbers.len() > 1);
    }
}

#[test]
fn a_search_goes_on_from_a_solution_of_its_graph_and_no_other_text() {
    let (graph, rule, now) = (queens(8), Rule::default(), Budget::seconds(0.0));
    let good = color(&graph, &Budget { target: 9, ..Budget::seconds(60.0) });
    let from = |start: &Coloring| {
        let mut methods = Vec::new();
        let best = rule.color_from(&graph, &now, Some(start), |_, method| methods.push(method));
        (best.num_colors(), methods)
    };
    let read = Coloring::from_dimacs(&graph, &format!("c a comment\n\n{}", good.to_dimacs())).unwrap();
    assert_eq!((read.num_colors(), from(&read)), (9, (9, vec!["start"])));
    let every = Coloring::greedy(&from_pairs(64, |_, _| true), &(0..64).collect::<Vec<_>>());
    assert_eq!(from(&every).1, ["DSATUR"]);
    for (old, new, sentence) in [
        ("l 64 ", "l 65 ", "line 65: \"l 65 "),
        ("l 64 ", "l 0 ", "names a node that the graph does not have"),
        ("l 64 ", "c 64 ", "the coloring is not proper: node 64 has no color"),
        ("s col 9\n", "s col 9\nl 1\n", "line 2: \"l 1\" is neither"),
        ("s col 9\n", "s col 9\nl 1 0\n", "line 2: \"l 1 0\" has no color from 1 on"),
    ] {
        let error = Coloring::from_dimacs(&graph, &good.to_dimacs().replace(old, new)).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
    }
    let one: String = (1..=64).map(|node| format!("l {node} 1\n")).collect();
    let error = Coloring::from_dimacs(&graph, &one).unwrap_err().to_string();
    assert!(error.contains("nodes 0 and 1 share an edge and color 0"), "{error}");
}

#[test]
fn the_rule_is_read_from_the_file_and_from_no_part_of_it() {
    assert_eq!(Rule::from_onnx(MODEL).unwrap(), Rule::default());
    for length in (0..MODEL.len()).step_by(997) {
        assert!(matches!(Rule::from_onnx(&MODEL[..length]), Err(Error::Rule)));
    }
    assert!(matches!(Rule::from_onnx(b"no model"), Err(Error::Rule)));
}
