//! Calls of the network, which need ONNX Runtime: `ORT_DYLIB_PATH=libonnxruntime.so cargo test -- --include-ignored`.
//! For another file than the shipped one, COLORING_GNN_MODEL names it; its golden vectors stand beside it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use coloring_gnn::{Budget, Coloring, ColoringGnn, Error, Graph, Options, Prediction, Request};
use serde_json::Value;

mod common;
use common::{checked, from_pairs, queens};

fn path() -> PathBuf {
    let shipped = "../../gnn_training/shipped/coloring_gnn.onnx";
    std::env::var_os("COLORING_GNN_MODEL").unwrap_or(shipped.into()).into()
}

fn model() -> ColoringGnn {
    ColoringGnn::open(path(), Options::default()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(path().with_extension("golden.json")).unwrap()).unwrap()
}

/// The graphs of a golden vector, and what the call asks for.
fn inputs(case: &Value) -> (Vec<Graph>, Request) {
    let inputs = &case["inputs"];
    let whole = |name: &str| numbers(&inputs[name]).into_iter().map(|number| number as usize).collect::<Vec<_>>();
    let (ends, batch) = (whole("edge_index"), whole("batch"));
    let (sources, targets) = ends.split_at(ends.len() / 2);
    let graphs = (0..=*batch.last().unwrap()).map(|index| {
        let start = batch.partition_point(|&graph| graph < index);
        let edges = sources.iter().zip(targets).filter(|&(&u, _)| batch[u] == index);
        let num_nodes = batch.iter().filter(|&&graph| graph == index).count();
        Graph::from_edges(num_nodes, edges.map(|(u, v)| (u - start, v - start))).unwrap()
    });
    let request = Request {
        num_colors: Some(whole("num_colors")[0]),
        seed: Some(whole("seed")[0] as i64),
        steps: Some(whole("steps")[0]),
    };
    (graphs.collect(), request)
}

fn predict(model: &mut ColoringGnn, graphs: &[Graph], request: &Request) -> Vec<Prediction> {
    model.predict_batch(&graphs.iter().collect::<Vec<_>>(), request).unwrap()
}

type Output = fn(&Prediction) -> Vec<f32>;

/// Largest difference between what a golden vector expects and predictions.
fn error(case: &Value, predictions: &[Prediction]) -> f64 {
    let outputs: [(&str, Output); 4] = [
        ("color_logits", |p| p.logits.clone()),
        ("chromatic", |p| vec![p.chromatic]),
        ("graph_type_logits", |p| p.family_logits.to_vec()),
        ("difficulty", |p| vec![p.difficulty]),
    ];
    let errors = outputs.into_iter().flat_map(|(name, output)| {
        let (expected, found) = (numbers(&case["outputs"][name]), predictions.iter().flat_map(output));
        assert_eq!(expected.len(), found.clone().count(), "{name}");
        expected.into_iter().zip(found).map(|(a, b)| (a - f64::from(b)).abs()).collect::<Vec<_>>()
    });
    errors.fold(0.0, f64::max)
}

#[test]
#[ignore = "needs ORT_DYLIB_PATH, the library of ONNX Runtime"]
fn the_golden_vectors_hold_and_their_colorings_are_the_same() {
    let (golden, mut model) = (golden(), model());
    let tolerance = golden["tolerance"].as_f64().unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let (graphs, request) = inputs(case);
        let predictions = predict(&mut model, &graphs, &request);
        let off = error(case, &predictions);
        assert!(off <= tolerance, "{} is off by {off}", case["name"]);
        let rows = case["outputs"]["color_logits"].as_array().unwrap().iter().map(numbers);
        let best = |row: Vec<f64>| (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let expected: Vec<usize> = rows.map(best).collect();
        assert_eq!(expected, predictions.iter().flat_map(|p| p.classes()).collect::<Vec<_>>(), "{}", case["name"]);
    }
}

/// The mistake: pairs flattened and reshaped to (2, E). Nothing complains; two looks find it.
#[test]
#[ignore = "needs ORT_DYLIB_PATH, the library of ONNX Runtime"]
fn a_scrambled_edge_list_is_caught_by_the_check_and_by_the_golden_vectors() {
    let scramble = |graph: &Graph| {
        let nodes = 0..graph.num_nodes();
        let pairs = nodes.flat_map(|u| graph.neighbors(u).iter().flat_map(move |&v| [u, v])).collect::<Vec<_>>();
        let (sources, targets) = pairs.split_at(pairs.len() / 2); // rows of the reshaped list
        Graph::from_edges(graph.num_nodes(), sources.iter().copied().zip(targets.iter().copied())).unwrap()
    };
    let (graph, golden, mut model) = (queens(6), golden(), model());
    let wrong = model.color(&scramble(&graph), &Budget::one_call()).unwrap();
    assert!(matches!(graph.check(wrong.colors()), Err(Error::Improper(_))));

    let case = golden["cases"].as_array().unwrap().iter().find(|case| case["name"] == "petersen").unwrap();
    let (graphs, request) = inputs(case);
    let scrambled: Vec<Graph> = graphs.iter().map(scramble).collect();
    let off = error(case, &predict(&mut model, &scrambled, &request));
    assert!(off > 100.0 * golden["tolerance"].as_f64().unwrap());
}

#[test]
#[ignore = "needs ORT_DYLIB_PATH, the library of ONNX Runtime"]
fn every_graph_is_colored_properly_whatever_the_budget() {
    let mut model = model();
    let one_call = Budget::one_call();
    let mut used = |graph: &Graph, budget: &Budget| checked(graph, &model.color(graph, budget).unwrap());
    assert_eq!(used(&Graph::from_edges(1, []).unwrap(), &one_call), 1);
    assert_eq!(used(&Graph::from_edges(40, []).unwrap(), &one_call), 1);
    assert_eq!(used(&from_pairs(260, |_, _| true), &one_call), 260); // more than the file has columns
    let plain = used(&queens(8), &one_call);
    assert!(plain <= 12, "DSATUR needs 12");
    let begin = Instant::now();
    assert_eq!(used(&queens(5), &Budget::seconds(3600.0)), 5); // a clique of five says that it is enough
    used(&queens(9), &Budget::seconds(2.0));
    assert!(begin.elapsed() < Duration::from_secs(60));
}

/// Without a clock, the answer is the same again.
#[test]
#[ignore = "needs ORT_DYLIB_PATH, the library of ONNX Runtime"]
fn the_second_call_takes_the_next_seed_and_four_times_as_many_steps() {
    let (graph, mut model) = (queens(8), model());
    let second = Request { seed: Some(7), steps: Some(4 * model.steps()), ..Request::default() };
    let calls = [Request::default(), second].map(|request| {
        let predictions = model.predict_batch(&[&graph], &request).unwrap();
        Coloring::greedy(&graph, &predictions[0].ordering())
    });
    let budget = Budget { calls: 2, seed: 6, ..Budget::seconds(3600.0) };
    let fewest = calls.into_iter().min_by_key(Coloring::num_colors).unwrap();
    assert_eq!(model.color(&graph, &budget).unwrap(), fewest);
}

#[test]
#[ignore = "needs ORT_DYLIB_PATH, the library of ONNX Runtime"]
fn a_file_that_is_none_is_named() {
    let open = |path: &str| ColoringGnn::open(path, Options::default()).err().unwrap().to_string();
    assert!(open("nowhere.onnx").starts_with("nowhere.onnx: cannot be read"), "{}", open("nowhere.onnx"));
    assert!(open("Cargo.toml").starts_with("Cargo.toml: ONNX Runtime refuses it"), "{}", open("Cargo.toml"));
    let model = model();
    assert_eq!(model.metadata("steps").unwrap(), model.steps().to_string());
    assert_eq!(model.metadata("no such key"), None);
}
