//! The client of another server, which is a binlog server here as well.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lockstep_binlog::wire::packet::encode;
use lockstep_binlog::wire::sql_client::{ClientTls, SqlClient, SqlClientError, Target};
use lockstep_binlog::wire::tls;

use crate::client::{Client, PASSWORD, USER};
use crate::tls::Authority;
use crate::{Lab, until};

fn target(lab: &Lab, tls: Option<&Authority>) -> Target {
    Target {
        address: lab.server.address().to_string(),
        user: USER.into(),
        password: PASSWORD.into(),
        tls: tls.map(|authority| Arc::new(ClientTls::load(&authority.path("ca.pem")).unwrap())),
        timeout: Duration::from_secs(30),
    }
}

#[test]
fn rows_of_another_server_are_read_with_and_without_tls() {
    let (authority, other) = (Authority::new("client"), Authority::new("stranger"));
    let acceptor = Arc::new(tls::acceptor(authority.write()).unwrap());
    let lab = Lab::new(1, 1, 10, |config| config.tls = Some(acceptor));
    for tls in [None, Some(&authority)] {
        let mut client = SqlClient::connect(&target(&lab, tls)).unwrap();
        assert_eq!(lab.server.consumers().last().unwrap().encrypted, tls.is_some());
        for _ in 0..2 {
            assert_eq!(client.rows("SELECT @@server_id, NULL").unwrap(), [vec![Some("10".into()), None]]);
        }
        let refused = client.rows("DROP TABLE t").unwrap_err();
        assert!(matches!(refused, SqlClientError::Server(1235, _)), "{refused}");
    }
    assert!(SqlClient::connect(&target(&lab, Some(&other))).is_err());
    let wrong = Target { password: "wrong".into(), ..target(&lab, None) };
    let refused = SqlClient::connect(&wrong).unwrap_err();
    assert!(matches!(refused, SqlClientError::Server(1045, _)), "{refused}");
}

#[test]
fn unknown_statements_are_passed_on() {
    let mut upstream = Lab::new(1, 1, 10, |_| {});
    let to = target(&upstream, None);
    let lab = Lab::new(1, 1, 10, |config| config.upstream = Some(to));
    let mut client = Client::connect(lab.server.address()).unwrap();
    assert!(upstream.server.consumers().is_empty());
    assert_eq!(client.rows("SELECT @@server_id").unwrap(), [["10"]]);
    assert!(upstream.server.consumers().is_empty(), "a known statement does not need the upstream");
    let (code, _) = client.rows("SELECT * FROM t").unwrap_err();
    assert_eq!((code, upstream.server.consumers().len()), (1235, 1));
    upstream.server.stop();
    let (code, text) = client.rows("SELECT * FROM t").unwrap_err();
    assert!(code == 1105 && text.contains("does not answer"), "{code} {text}");
    assert_eq!(client.rows("SELECT @@server_id").unwrap(), [["10"]]);
}

/// Passes one connection on to `server`, and adds these bytes to the server's first packet. Returns its address.
fn adds_to_the_greeting(server: &Lab, bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, server) = (listener.local_addr().unwrap(), server.server.address());
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(server).unwrap();
        let mut greeting = [0; 4096];
        let length = server.read(&mut greeting).unwrap();
        client.write_all(&[&greeting[..length], &bytes].concat()).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Write);
    });
    address.to_string()
}

#[test]
fn bytes_between_greeting_and_tls_are_refused() {
    let authority = Authority::new("injection");
    let acceptor = Arc::new(tls::acceptor(authority.write()).unwrap());
    let lab = Lab::new(1, 1, 10, |config| config.tls = Some(acceptor));
    // The answer to the sign-in: the request for TLS is packet 1, the reply is packet 2.
    let mut forged = Vec::new();
    encode(&[&[0, 0, 0, 2, 0, 0, 0]], &mut 3, &mut forged);
    let honest = Target { address: adds_to_the_greeting(&lab, Vec::new()), ..target(&lab, Some(&authority)) };
    assert_eq!(SqlClient::connect(&honest).unwrap().rows("SELECT @@server_id").unwrap().len(), 1);
    let attacked = Target { address: adds_to_the_greeting(&lab, forged), ..honest };
    let refused = SqlClient::connect(&attacked).unwrap_err().to_string();
    assert!(refused.contains("without encryption"), "{refused}");
}

#[test]
fn connection_that_the_upstream_closed_is_made_anew() {
    let idle = Duration::from_secs(1);
    for authority in [None, Some(Authority::new("anew"))] {
        let acceptor = authority.as_ref().map(|authority| tls::acceptor(authority.write()).unwrap());
        let upstream = Lab::new(1, 1, 10, |config| {
            (config.idle_timeout, config.tls) = (idle, acceptor.map(Arc::new));
        });
        let to = target(&upstream, authority.as_ref());
        let lab = Lab::new(1, 1, 10, |config| config.upstream = Some(to));
        let mut client = Client::connect(lab.server.address()).unwrap();
        for _ in 0..2 {
            let (code, text) = client.rows("SELECT * FROM t").unwrap_err();
            assert_eq!(code, 1235, "{text}");
            until("the upstream has closed the connection", || upstream.server.consumers().is_empty());
            // The socket is closed a moment later.
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}
