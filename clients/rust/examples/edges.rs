//! For comparisons with other readers: for every line of hexadecimal digits, which are a DIMACS file, a line with the
//! number of nodes and all edges, or with what is wrong.

use coloring_gnn::Graph;

fn main() {
    for line in std::io::stdin().lines() {
        let line = line.expect("standard input can be read");
        let byte = |place| u8::from_str_radix(&line[place..place + 2], 16).expect("two hexadecimal digits");
        let text: Vec<u8> = (0..line.len() / 2).map(|place| byte(2 * place)).collect();
        match Graph::from_dimacs(text) {
            Err(error) => println!("{error}"),
            Ok(graph) => {
                let mut words = vec![graph.num_nodes().to_string()];
                for u in 0..graph.num_nodes() {
                    words.extend(graph.neighbors(u).iter().filter(|&&v| u < v).map(|v| format!("{u}-{v}")));
                }
                println!("{}", words.join(" "));
            }
        }
    }
}
