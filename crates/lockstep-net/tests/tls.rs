//! Members that encrypt: whom they take, whom they refuse and in which words, on real sockets.

mod common;
#[path = "common/pki.rs"]
mod pki;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Node, connect, dial_failed, down, frame, make_ready, noise, numeric, still_talk, until, up};
use lockstep_net::proto::ProtoConfig;
use lockstep_net::{
    Address, Bytes, Config, DialError, Event, Reason, TlsConfig, TlsError, TlsFiles, TlsIdentity,
};
use pki::{Authority, Folder, dynamic, files, load, member, strict};

fn node(hello: &'static str, tls: Option<TlsConfig>) -> Node {
    Node::with(Config {
        proto: ProtoConfig { handshake_timeout: Duration::from_millis(1500), ..ProtoConfig::new("c") },
        tls,
        ..Config::new("c", Bytes::from_static(hello.as_bytes()), hello.len() as u64)
    })
}

/// The errors of both sides when `a` dials `b` in vain.
fn both_words(a: &mut Node, b: &mut Node) -> (DialError, String) {
    let at = b.listen();
    a.reactor.dial(&numeric(at));
    let (mut x, mut y) = (None, None);
    until(&mut [a, b], "words on both sides", |n| {
        x = x.take().or_else(|| n[0].take(dial_failed).map(|f| f.1));
        y = y.take().or_else(|| n[1].take(noise));
        assert!(n[0].take(up).is_none() && n[1].take(up).is_none(), "nobody may get this far");
        x.clone().zip(y.clone())
    })
}

#[test]
fn members_of_one_authority_talk() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let mut a = node("alpha", strict(&member(&folder, "a", &ca, &ca)));
    let mut b = node("beta", strict(&member(&folder, "b", &ca, &ca)));
    let (ca_, cb) = connect(&mut a, &mut b);
    still_talk(&mut a, ca_, &mut b, cb);
    let big = Bytes::from((0..20_000_000u32).map(|i| (i * 7) as u8).collect::<Vec<u8>>());
    let sizes = [0usize, 1, 11, 12, 13, 4096, 16_384, 70_000, 1, 20_000_000, 5, 262_144, 3];
    for (i, &size) in sizes.iter().enumerate() {
        a.reactor.send(ca_, i as u8, &[big.slice(..size / 2), big.slice(size / 2..size)]).unwrap();
        b.reactor.send(cb, i as u8, &[big.slice(..size)]).unwrap();
    }
    a.reactor.flush();
    let mut got = [0, 0];
    until(&mut [&mut a, &mut b], "all frames, both ways", |n| {
        for (node, got) in n.iter_mut().zip(&mut got) {
            while let Some((kind, payload)) = node.take(frame) {
                assert_eq!(usize::from(kind), *got);
                assert!(payload == big.slice(..sizes[*got]), "frame {got}");
                *got += 1;
            }
        }
        (got == [sizes.len(); 2]).then_some(())
    });
    until(&mut [&mut a, &mut b], "the way is measured", |n| n[0].reactor.stats(ca_)?.rtt);
    // The last words come through.
    b.reactor.close(cb, Reason::Shutdown, "bye");
    let (_, reason) = until(&mut [&mut a, &mut b], "goodbye", |n| n[0].take(down));
    assert_eq!(reason.to_string(), "the peer left: shutting down: bye");
}

#[test]
fn nothing_in_clear_on_the_wire() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let mut a = node("alpha-secret", strict(&member(&folder, "a", &ca, &ca)));
    let mut b = node("beta-secret", strict(&member(&folder, "b", &ca, &ca)));
    let target = b.listen();
    let tap = TcpListener::bind("127.0.0.1:0").unwrap();
    a.reactor.keep(&numeric(tap.local_addr().unwrap()));
    // A thread between the two forwards three bytes at a time, both ways, and records them.
    let relay = std::thread::spawn(move || {
        let one = tap.accept().unwrap().0;
        let two = TcpStream::connect(target).unwrap();
        let pump = |mut from: TcpStream, mut to: TcpStream| {
            to.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let (mut seen, mut buf) = (Vec::new(), [0; 3]);
                while let Ok(n) = from.read(&mut buf) {
                    if n == 0 || to.write_all(&buf[..n]).is_err() {
                        break;
                    }
                    seen.extend_from_slice(&buf[..n]);
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
                seen
            })
        };
        let there = pump(one.try_clone().unwrap(), two.try_clone().unwrap());
        let back = pump(two, one);
        [there.join().unwrap(), back.join().unwrap()]
    });
    let (ca_, cb) = make_ready(&mut a, &mut b);
    still_talk(&mut a, ca_, &mut b, cb);
    a.reactor.shutdown("", Duration::from_secs(1));
    until(&mut [&mut b], "down", |n| n[0].take(down));
    drop((a, b));
    for seen in relay.join().unwrap() {
        assert!(seen.len() > 500, "{}", seen.len());
        for word in [&b"LOCKSTEP"[..], b"secret", b"still there?"] {
            assert!(!seen.windows(word.len()).any(|w| w == word), "{word:?} was sent in clear");
        }
    }
}

#[test]
fn another_authoritys_member_is_refused_in_words() {
    let folder = Folder::new();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    // The dialed one does not trust the dialer.
    let mut a = node("alpha", strict(&member(&folder, "a", &theirs, &ours)));
    let mut b = node("beta", strict(&member(&folder, "b", &ours, &ours)));
    let (at_a, at_b) = both_words(&mut a, &mut b);
    assert!(at_a.to_string().contains("the peer refuses this member's certificate"), "{at_a}");
    assert!(
        at_b.contains("the peer's certificate is not signed by an authority of the file socket.ssl_ca"),
        "{at_b}"
    );
    // The dialer does not trust the dialed one.
    let mut a = node("alpha", strict(&member(&folder, "c", &ours, &theirs)));
    let (at_a, at_b) = both_words(&mut a, &mut b);
    assert!(at_a.to_string().contains("the peer's certificate is not signed by"), "{at_a}");
    assert!(at_b.contains("the peer refuses this member's certificate"), "{at_b}");
}

#[test]
fn expired_and_future_certificates_are_refused_in_words() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let mut b = node("beta", strict(&member(&folder, "b", &ca, &ca)));
    let old = member(&folder, "a", &ca, &ca);
    ca.issue(&old, |p| {
        p.not_before = rcgen::date_time_ymd(2020, 1, 1);
        p.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    assert!(load(&old).warning(Duration::ZERO).unwrap().contains("has expired"));
    let (at_a, at_b) = both_words(&mut node("alpha", strict(&old)), &mut b);
    assert!(at_a.to_string().contains("this member's certificate has expired"), "{at_a}");
    assert!(at_b.contains("the peer's certificate has expired"), "{at_b}");
    ca.issue(&old, |p| p.not_before = rcgen::date_time_ymd(2090, 1, 1));
    let (_, at_b) = both_words(&mut node("alpha", strict(&old)), &mut b);
    assert!(at_b.contains("not valid yet"), "{at_b}");
}

#[test]
fn shared_self_signed_certificate_is_accepted() {
    let folder = Folder::new();
    let shared = TlsFiles { ca: None, ..files(&folder, "shared") };
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "everybody");
    // Many are made with OpenSSL's defaults, as an authority.
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&shared.cert, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&shared.key, key.serialize_pem()).unwrap();
    assert_eq!(load(&shared).warning(Duration::ZERO), None);
    let (mut a, mut b) = (node("alpha", strict(&shared)), node("beta", strict(&shared)));
    let (ca, cb) = connect(&mut a, &mut b);
    still_talk(&mut a, ca, &mut b, cb);
    // Listed, but past its time.
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    std::fs::write(&shared.cert, params.self_signed(&key).unwrap().pem()).unwrap();
    let (mut a, mut b) = (node("alpha", strict(&shared)), node("beta", strict(&shared)));
    let (at_a, _) = both_words(&mut a, &mut b);
    assert!(at_a.to_string().contains("has expired"), "{at_a}");
}

#[test]
fn client_without_certificate_receives_nothing() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = member(&folder, "b", &ca, &ca);
    let mut b = node("beta", strict(&own));
    let at = b.listen();
    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    roots.add(CertificateDer::from_pem_file(own.ca.as_ref().unwrap()).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("member.example").unwrap();
    let client = std::thread::spawn(move || {
        let mut tls = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(at).unwrap();
        let mut stream = rustls::Stream::new(&mut tls, &mut socket);
        let _ = stream.write_all(b"LOCKSTEP\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    let what = until(&mut [&mut b], "refused", |n| n[0].take(noise));
    assert!(what.contains("presents no certificate") || what.contains("ends the TLS handshake"), "{what}");
    let end = Instant::now() + Duration::from_secs(3);
    while !client.is_finished() && Instant::now() < end {
        b.poll();
    }
    assert_eq!(client.join().unwrap(), b"");
}

#[test]
fn plain_and_tls_end_in_one_line_each() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = member(&folder, "t", &ca, &ca);
    let (at_plain, at_tls) = both_words(&mut node("alpha", None), &mut node("beta", strict(&own)));
    assert!(at_plain.to_string().contains("a TLS server, and this member has no socket.ssl"), "{at_plain}");
    assert!(matches!(&at_plain, DialError::Encrypts(_)) && at_plain.is_for_a_person(), "{at_plain}");
    assert!(at_tls.contains("a member that does not encrypt"), "{at_tls}");
    let (at_tls, at_plain) = both_words(&mut node("alpha", strict(&own)), &mut node("beta", None));
    assert!(matches!(&at_tls, DialError::NotEncrypted(_)), "{at_tls}");
    assert!(at_tls.to_string().contains("socket.ssl on: all members need it"), "{at_tls}");
    assert!(at_plain.contains("a TLS client: if it is a member, it has socket.ssl on"), "{at_plain}");
}

#[test]
fn dynamic_takes_both() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = member(&folder, "d", &ca, &ca);
    for (x, y, encrypted) in [
        (dynamic(&own), None, false),
        (None, dynamic(&own), false),
        (dynamic(&own), strict(&own), true),
        (strict(&own), dynamic(&own), true),
        (dynamic(&own), dynamic(&own), true),
    ] {
        let (mut a, mut b) = (node("alpha", x), node("beta", y));
        let at = b.listen();
        a.reactor.keep(&numeric(at));
        let mut seen = Vec::new();
        until(&mut [&mut a, &mut b], "both up", |n| {
            for node in n.iter_mut() {
                if let Some((conn, hello)) = node.take(up) {
                    seen.push(hello.encrypted);
                    node.reactor.accept(conn);
                }
            }
            (seen.len() == 2).then_some(())
        });
        assert_eq!(seen, [encrypted; 2]);
        let ready = |n: &mut Node| n.take(common::ready);
        let (mut ca, mut cb) = (None, None);
        until(&mut [&mut a, &mut b], "ready", |n| {
            ca = ca.or_else(|| ready(n[0]));
            cb = cb.or_else(|| ready(n[1]));
            ca.zip(cb)
        });
        still_talk(&mut a, ca.unwrap(), &mut b, cb.unwrap());
        // No words of failure: the second attempt is part of the first.
        assert!(!a.events.iter().any(|e| matches!(e, Event::DialFailed { .. })), "{:?}", a.events);
    }
}

#[test]
fn certificates_change_while_connections_stay() {
    let folder = Folder::new();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (at_a, at_b) = (member(&folder, "a", &old, &old), member(&folder, "b", &old, &old));
    let (mut a, mut b) = (node("alpha", strict(&at_a)), node("beta", strict(&at_b)));
    let (ca, cb) = connect(&mut a, &mut b);
    // Step by step, as in operation: first both authorities are trusted, then certificates change.
    let both = |files: &TlsFiles| {
        old.write(files.ca.as_ref().unwrap());
        let mut text = std::fs::read_to_string(files.ca.as_ref().unwrap()).unwrap();
        new.write(files.ca.as_ref().unwrap());
        text += &std::fs::read_to_string(files.ca.as_ref().unwrap()).unwrap();
        std::fs::write(files.ca.as_ref().unwrap(), text).unwrap();
    };
    both(&at_a);
    both(&at_b);
    a.reactor.set_identity(load(&at_a));
    b.reactor.set_identity(load(&at_b));
    new.issue(&at_a, |_| ());
    a.reactor.set_identity(load(&at_a));
    still_talk(&mut a, ca, &mut b, cb);
    let again = |a: &mut Node, b: &mut Node, cb| {
        b.reactor.close(cb, Reason::Failure, "");
        until(&mut [a, b], "down", |n| n[0].take(down));
        let (ca, cb) = make_ready(a, b);
        still_talk(a, ca, b, cb);
        cb
    };
    let cb = again(&mut a, &mut b, cb);
    new.issue(&at_b, |_| ());
    new.write(at_b.ca.as_ref().unwrap());
    b.reactor.set_identity(load(&at_b));
    let cb = again(&mut a, &mut b, cb);
    // Now `a` goes back to the old authority, which `b` does not trust any more.
    old.issue(&at_a, |_| ());
    a.reactor.set_identity(load(&at_a));
    b.reactor.close(cb, Reason::Failure, "");
    let error = until(&mut [&mut a, &mut b], "refused", |n| n[0].take(dial_failed)).1;
    assert!(matches!(error, DialError::Tls(_)), "{error}");
}

#[test]
fn strangers_are_named_and_silent_ones_are_bounded() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = member(&folder, "s", &ca, &ca);
    // The beginning of a handshake that never goes on.
    let half: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for (bytes, expected) in [
        (&b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"[..], "HTTP client"),
        (b"\x16\x03\x01\x00\x05hello", "not TLS"),
        (half, "sent nothing in time"),
        (b"", "sent nothing in time"),
    ] {
        // A sender logged a moment ago for the same reason is not logged again.
        let (mut a, mut b) = (node("alpha", strict(&own)), node("beta", strict(&own)));
        let (ca_, cb) = connect(&mut a, &mut b);
        let mut stream = TcpStream::connect(a.listen()).unwrap();
        stream.write_all(bytes).unwrap();
        let begun = Instant::now();
        let what = until(&mut [&mut a, &mut b], expected, |n| n[0].take(noise));
        assert!(what.contains(expected), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(8));
        still_talk(&mut a, ca_, &mut b, cb);
    }
    let (mut a, mut b) = (node("alpha", strict(&own)), node("beta", strict(&own)));
    connect(&mut a, &mut b);
    let at = a.listen();
    let mut flood: Vec<TcpStream> = Vec::new();
    for i in 0..150 {
        let mut stream = TcpStream::connect(at).unwrap();
        let _ = stream.write_all(half);
        flood.push(stream);
        if i % 20 == 0 {
            a.poll();
        }
    }
    let mut c = node("gamma", strict(&own));
    c.reactor.keep(&numeric(at));
    let begun = Instant::now();
    let (cc, ca_) = make_ready(&mut c, &mut a);
    assert!(begun.elapsed() < Duration::from_secs(2));
    still_talk(&mut c, cc, &mut a, ca_);
}

#[test]
fn plain_server_of_another_protocol_is_named() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let mut a = node("alpha", strict(&member(&folder, "a", &ca, &ca)));
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at: SocketAddr = other.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        let _ = stream.read(&mut [0; 1000]);
    });
    a.reactor.dial(&numeric(at));
    let error = until(&mut [&mut a], "named", |n| n[0].take(dial_failed)).1;
    assert_eq!(error, DialError::NotLockstep("an SSH program".into()));
    server.join().unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let good = member(&folder, "g", &ca, &ca);
    let other = member(&folder, "o", &ca, &ca);
    let text = |files: &TlsFiles| TlsIdentity::load(files).unwrap_err().to_string();
    let missing = TlsFiles { key: folder.path("nowhere.pem"), ..good.clone() };
    assert!(text(&missing).starts_with("socket.ssl_key: cannot read "), "{}", text(&missing));
    let swapped = TlsFiles { key: good.cert.clone(), ..good.clone() };
    assert!(text(&swapped).contains("no private key in"), "{}", text(&swapped));
    let mismatch = TlsFiles { key: other.key.clone(), ..good.clone() };
    assert!(matches!(TlsIdentity::load(&mismatch), Err(TlsError::Mismatch(_))));
    let no_ca = TlsFiles { ca: Some(good.key.clone()), ..good.clone() };
    assert!(text(&no_ca).starts_with("socket.ssl_ca: there is no certificate in"), "{}", text(&no_ca));
    let locked = folder.path("locked.pem");
    std::fs::write(
        &locked,
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    )
    .unwrap();
    let locked = TlsFiles { key: locked, ..good.clone() };
    assert!(text(&locked).contains("is encrypted"), "{}", text(&locked));
    let junk = folder.path("junk.pem");
    std::fs::write(&junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let junk = TlsFiles { cert: junk, ..good.clone() };
    assert!(text(&junk).starts_with("socket.ssl_cert: "), "{}", text(&junk));
    let device = TlsFiles { ca: Some("/dev/zero".into()), ..good.clone() };
    assert!(text(&device).contains("cannot read /dev/zero"), "{}", text(&device));
    assert!(load(&good).warning(Duration::from_secs(3600)).is_none());
    let foreign = Authority::new("foreign");
    foreign.write(good.ca.as_ref().unwrap());
    assert!(load(&good).warning(Duration::ZERO).unwrap().contains("not signed by an authority"));
    ca.write(good.ca.as_ref().unwrap());
    ca.issue(&good, |p| {
        p.not_before = rcgen::date_time_ymd(2020, 1, 1);
        p.not_after = rcgen::date_time_ymd(2026, 12, 24);
    });
    let soon = load(&good).warning(Duration::from_secs(86_400 * 36_500)).unwrap();
    assert!(soon.contains("expire"), "{soon}");
    let mut b = Node::with(Config { tls: strict(&other), ..Config::new("c", Bytes::new(), 1) });
    b.reactor.listen(&[Address::parse("ssl://127.0.0.1:0", 0).unwrap()]).unwrap();
}

/// Both ends of a connection, of blocking sockets.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    (near, far)
}

#[test]
fn blocking_streams_of_members_carry_bytes() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let (a, b) = (load(&member(&folder, "a", &ca, &ca)), load(&member(&folder, "b", &ca, &ca)));
    let (near, far) = sockets();
    let remote = near.peer_addr().unwrap().ip();
    let side = std::thread::spawn(move || {
        let mut stream = b.accept(far).unwrap();
        let mut bytes = vec![0; 1_000_000];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).and_then(|()| stream.flush()).unwrap();
    });
    let mut stream = a.dial(near, remote).unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i * 7) as u8).collect();
    stream.write_all(&sent).and_then(|()| stream.flush()).unwrap();
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).unwrap();
    assert!(received == sent);
    side.join().unwrap();
}

#[test]
fn blocking_streams_refuse_foreign_certificates_and_plain_text() {
    let (folder, ca, other) = (Folder::new(), Authority::new("ca"), Authority::new("other"));
    let own = load(&member(&folder, "a", &ca, &ca));
    // This one trusts the group, and the group does not trust its certificate.
    let foreign = load(&member(&folder, "x", &other, &ca));
    let (near, far) = sockets();
    let remote = near.peer_addr().unwrap().ip();
    let side = std::thread::spawn({
        let own = own.clone();
        move || own.accept(far).map(drop).unwrap_err().to_string()
    });
    // A client learns of a refusal with the first answer.
    let refused = foreign.dial(near, remote).and_then(|mut stream| stream.read(&mut [0; 1]).map(drop));
    assert!(refused.is_err());
    assert!(side.join().unwrap().contains("not signed by an authority"));
    let (mut near, far) = sockets();
    let side = std::thread::spawn(move || own.accept(far).map(drop));
    near.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert!(side.join().unwrap().is_err());
}
