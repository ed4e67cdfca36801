//! Connecting to other services, and foreign connections on the port.

mod common;

use common::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const BOUNDED: &str = "pc.wait_prim_timeout=PT3S; pc.announce_timeout=PT1S";

/// Starts member `n` and expects that `connect` fails, in bounded time, with a line that an operator can read.
fn refused(cluster: &mut Cluster, n: usize) {
    let library = cluster.library.clone();
    let began = Instant::now();
    let member = cluster.configure(n, false).unwrap();
    let result = member.call("start", json!({ "library": library }));
    assert_eq!(code(result), "status:NODE_FAIL");
    assert!(began.elapsed() < Duration::from_secs(45), "after {:?}", began.elapsed());
    let errors = member.events().into_iter().filter(|(kind, _)| kind == "provider_error").count();
    assert!(errors > 0, "no error was logged");
    cluster.kill(n);
}

fn works(cluster: &Cluster, value: &str) {
    cluster.member(0).put("s", "t/1", value).unwrap();
    for member in cluster.running() {
        assert_eq!(member.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), value);
    }
}

fn another_cluster_name_is_refused(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.nodes[1].extra.insert("cluster".into(), json!("another"));
    cluster.nodes[1].options = BOUNDED.into();
    refused(cluster, 1);
    works(cluster, "undisturbed");
}

fn nobody_at_the_address(cluster: &mut Cluster) {
    cluster.nodes[0].extra.insert("url".into(), json!("gcomm://127.0.0.1:9,127.0.0.1:13"));
    cluster.nodes[0].options = BOUNDED.into();
    refused(cluster, 0);
}

fn something_else_at_the_address(cluster: &mut Cluster) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("gcomm://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { break };
            let _ =
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nthis is not what you are looking for\r\n");
            let _ = stream.read(&mut [0; 64]);
        }
    });
    cluster.nodes[0].extra.insert("url".into(), json!(url));
    cluster.nodes[0].options = BOUNDED.into();
    refused(cluster, 0);
}

fn a_taken_port_is_an_error(cluster: &mut Cluster) {
    let _taken = TcpListener::bind(("127.0.0.1", cluster.nodes[0].port)).unwrap();
    let library = cluster.library.clone();
    let member = cluster.configure(0, true).unwrap();
    assert_eq!(code(member.call("start", json!({ "library": library }))), "status:NODE_FAIL");
    cluster.kill(0);
}

fn strangers_on_the_port_do_no_harm(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let mut seed = 88_172_645_463_325_252u64;
    let mut open = Vec::new();
    for n in 0..24 {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.nodes[0].port)).unwrap();
        let mut bytes = vec![0u8; n * 37];
        for byte in &mut bytes {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *byte = seed as u8;
        }
        let _ = stream.write_all(&bytes);
        // Half of them stay open and say nothing more.
        if n % 2 == 0 {
            open.push(stream);
        }
    }
    works(cluster, "undisturbed");
    std::thread::sleep(Duration::from_millis(500));
    works(cluster, "still undisturbed");
    drop(open);
}

/// Members are known by their ids; the default of a name is the host's, so that two of one host have the same.
fn a_second_member_of_the_same_name_joins(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.nodes[1].extra.insert("name".into(), json!("n1"));
    cluster.start(1, false).unwrap();
    works(cluster, "by the first");
    cluster.member(1).put("s", "t/1", "by the second").unwrap();
    let seen = cluster.member(0).call("get", json!({ "row": "t/1", "causal": true })).unwrap();
    assert_eq!(seen, "by the second");
}

scenarios! {
    another_cluster_name_is_refused: 2,
    nobody_at_the_address: 1,
    something_else_at_the_address: 1,
    a_taken_port_is_an_error: 1,
    strangers_on_the_port_do_no_harm: 2,
    a_second_member_of_the_same_name_joins: 2,
}
