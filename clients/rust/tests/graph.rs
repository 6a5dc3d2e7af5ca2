//! Graphs alone: neither a model nor ONNX Runtime is needed.

use coloring_gnn::{Error, Graph, NUM_FEATURES};

mod common;
use common::from_pairs;

#[test]
fn the_same_graph_comes_from_every_form() {
    let edges = Graph::from_edges(4, [(0, 1), (1, 0), (3, 2), (2, 2)]).unwrap();
    let cells = [[0, 1, 0, 0], [0; 4], [0, 0, 1, 1], [0; 4]];
    assert_eq!(Graph::from_adjacency(4, cells.concat().into_iter().map(|cell| cell == 1)).unwrap(), edges);
    assert_eq!(Graph::from_dimacs("c two edges\np col 4 9\nn 1 7\ne 1 2\n\ne 4 3\ne 3 4\n").unwrap(), edges);
}

#[test]
fn dimacs_is_read_as_python_reads_it() {
    let path = Graph::from_edges(3, [(0, 1), (1, 2)]).unwrap();
    for end in ["\n", "\r\n", "\r"] {
        let text = ["\u{feff}c \u{fc}ber", "", "p edge 3 2", "e 1\x0b2 more", "e 2\t3"].join(end);
        assert_eq!(Graph::from_dimacs(&text).unwrap(), path, "{end:?}");
        assert_eq!(Graph::from_dimacs(text + end + end).unwrap(), path, "{end:?}");
        let error = Graph::from_dimacs(["c", "", "p edge 3 2", "e 1 4"].join(end)).unwrap_err().to_string();
        assert_eq!(error, "line 4: edge 1-4 leaves the nodes 1..3 of the header");
    }
    assert_eq!(Graph::from_dimacs(b"c \xff\np col 3 2\ne 1 2\ne 02 3").unwrap(), path);
    for edge in ["e 1_0 2", "e +1 2", "e \u{661} 2", "e -1 2", "e 1 2.0", "e 1\u{a0}2", "\u{feff}e 1 2"] {
        let error = Graph::from_dimacs(format!("p edge 20 1\n{edge}")).unwrap_err().to_string();
        assert!(error.starts_with("line 2: ") && error.ends_with("is neither `c`, one `p edge N M` nor `e u v`"));
    }
    for header in ["p edge 100000000000 0", "p edge 0 0", "p edge 1000001 0"] {
        let error = Graph::from_dimacs(header).unwrap_err().to_string();
        assert!(error.ends_with(" nodes; a graph has 1 to 1000000"), "{error}");
    }
    for header in ["p edge 3", "p edge 3 x", "p edge 9999999999999999999 0", "p edge", "p", "p 3 3 3", "p tree 3 3"] {
        assert!(Graph::from_dimacs(header).is_err(), "{header}");
    }
    assert_eq!(Graph::from_dimacs("p edge 1000000 0").unwrap().num_nodes(), 1_000_000);
    assert!(Graph::from_adjacency(1 << (usize::BITS / 2), []).is_err());
}

#[test]
fn what_is_wrong_with_a_graph_is_said() {
    let dimacs = |text| Graph::from_dimacs(text).unwrap_err().to_string();
    assert_eq!(dimacs("p edge 3 1\ne 0 1"), "line 2: edge 0-1 leaves the nodes 1..3 of the header");
    assert_eq!(dimacs("p edge 3 1\nedge"), "line 2: \"edge\" is neither `c`, one `p edge N M` nor `e u v`");
    assert_eq!(dimacs("p edge 3 1\np edge 3 1").split(':').next(), Some("line 2"));
    assert_eq!(dimacs("c nothing"), "line 1: no `p edge N M` follows");
    let message = |graph: Result<Graph, Error>| graph.unwrap_err().to_string();
    assert_eq!(message(Graph::from_edges(0, [])), "the graph has no nodes; leave it out");
    assert_eq!(message(Graph::from_edges(2, [(0, 2)])), "edge 0-2 leaves the nodes 0..2; nodes count from 0");
    let cells = message(Graph::from_adjacency(2, [true; 3]));
    assert_eq!(cells, "the adjacency has 3 cells where 2 nodes need 2 x 2");
    let path = Graph::from_edges(3, [(0, 1), (1, 2)]).unwrap();
    let improper = |colors: &[usize]| path.check(colors).unwrap_err().to_string();
    assert_eq!(improper(&[0, 1, 1]), "the coloring is not proper: nodes 1 and 2 share an edge and color 1");
    assert_eq!(improper(&[0, 1]), "the coloring is not proper: 2 colors for 3 nodes");
}

#[cfg(feature = "onnxruntime")]
#[test]
fn a_missing_library_is_named() {
    use coloring_gnn::{ColoringGnn, MODEL, Options};
    let library = Options { library: Some("no_such_library.so".into()), ..Options::default() };
    let missing = ColoringGnn::from_bytes(MODEL, library).err().unwrap().to_string();
    assert!(missing.starts_with("no_such_library.so: cannot be loaded as ONNX Runtime"), "{missing}");
}

#[test]
fn features_agree_with_counting_every_triple() {
    let n = 40;
    let graph = from_pairs(n, |u, v| (u * u + 7 * v * v + u * v) % 11 < 4);
    let linked = |u: usize, v: usize| graph.neighbors(u).contains(&v);
    for (node, row) in graph.node_features().chunks_exact(NUM_FEATURES).enumerate() {
        let degree = graph.neighbors(node).len() as f32;
        let pairs = (0..n).flat_map(|u| (0..u).map(move |v| (u, v)));
        let closed = pairs.filter(|&(u, v)| linked(node, u) && linked(node, v) && linked(u, v)).count() as f32;
        assert!((row[4] - closed / 100.0).abs() < 1e-6);
        assert!((row[1] * degree * (degree - 1.0) / 2.0 - closed).abs() < 1e-3);
        assert!((row[2] - degree / (n - 1) as f32).abs() < 1e-6);
        assert!(row[5..].iter().all(|&rest| rest == 0.0));
    }
}
