//! The client of another server, which is a binlog server here as well.

use std::sync::Arc;
use std::time::Duration;

use lockstep_binlog::wire::TlsAcceptor;
use lockstep_binlog::wire::sql_client::{ClientTls, SqlClient, SqlClientError, Target};

use crate::Lab;
use crate::client::{Client, PASSWORD, USER};
use crate::tls::Authority;

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
    let acceptor = Arc::new(TlsAcceptor::load(authority.write()).unwrap());
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
