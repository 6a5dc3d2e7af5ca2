//! Times calls through this crate against bare calls of ONNX Runtime with the same inputs, alternately:
//! `cargo run --release --example latency -- MODEL CALLS GRAPH.col...` prints the medians.

use std::time::{Duration, Instant};

use coloring_gnn::ort::{self, session::Session, value::Tensor};
use coloring_gnn::{Coloring, ColoringGnn, Graph, NUM_FEATURES, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, calls, paths @ ..] = &arguments[..] else { return Err("latency MODEL CALLS GRAPH.col...".into()) };
    let environment = ort::init_from(std::env::var("ORT_DYLIB_PATH")?)?.build()?;
    let threads = std::thread::available_parallelism()?.get();
    let mut bare = Session::builder(&environment)?
        .with_intra_threads(threads)?
        .with_intra_op_spinning(false)?
        .commit_from_file(model)?;
    let mut crated = ColoringGnn::open(model, Options { environment: Some(environment), ..Options::default() })?;
    println!("| graph | nodes | edges | colors | bare s | crate s |\n|---|---|---|---|---|---|");
    for path in paths {
        let graph = Graph::from_dimacs(&std::fs::read_to_string(path)?)?;
        let n = graph.num_nodes();
        let pairs = |u: usize| graph.neighbors(u).iter().map(move |&v| [u as i64, v as i64]);
        let pairs: Vec<[i64; 2]> = (0..n).flat_map(pairs).collect();
        let edges: Vec<i64> = [0, 1].iter().flat_map(|&end| pairs.iter().map(move |pair| pair[end])).collect();
        let inputs = ort::inputs![
            "node_features" => Tensor::from_array(([n, NUM_FEATURES], vec![0_f32; n * NUM_FEATURES]))?,
            "edge_index" => Tensor::from_array(([2, pairs.len()], edges))?,
            "batch" => Tensor::from_array(([n], vec![0_i64; n]))?,
        ];
        let (mut bare_times, mut crate_times, mut colors) = (Vec::new(), Vec::new(), 0);
        for _ in 0..calls.parse()? {
            let start = Instant::now();
            bare.run(inputs.iter().map(|(name, value)| (name.clone(), (**value).view())).collect::<Vec<_>>())?;
            bare_times.push(start.elapsed());
            let start = Instant::now();
            let prediction = crated.predict(&graph)?;
            crate_times.push(start.elapsed());
            colors = Coloring::greedy(&graph, &prediction.ordering()).num_colors();
        }
        let median = |times: &mut Vec<Duration>| {
            times.sort();
            times[times.len() / 2].as_secs_f64()
        };
        let (bare, crated) = (median(&mut bare_times), median(&mut crate_times));
        println!("| {path} | {n} | {} | {colors} | {bare:.3} | {crated:.3} |", graph.num_edges());
    }
    Ok(())
}
