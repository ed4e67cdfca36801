//! The delay line does what it says: real sockets, in namespaces, through TUN devices.
//!
//! A busy machine can make any packet late, never early. So delays are checked by their minimum, which one undisturbed
//! packet sets, with as many tries as it takes. If the machine's own timers are late each time (a virtual machine whose
//! host is busy), the line may be as late as they are. Throughput is checked by a bound far below what the line carries.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use lockstep_lab::wan::{Link, Settings, Wan};
use lockstep_local::LocalError;

use crate::fixture::{Test, has_networks};

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> LocalError {
    move |source| LocalError::Io { what: what.into(), source }
}

/// A UDP socket of a member, which waits 5 s at most.
fn socket(wan: &Wan, zone: usize, member: usize) -> Result<UdpSocket, LocalError> {
    let socket = wan.within(zone, member, || UdpSocket::bind("0.0.0.0:7"))?.map_err(failed("bind"))?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(failed("set a timeout"))?;
    Ok(socket)
}

fn address(wan: &Wan, zone: usize, member: usize) -> SocketAddr {
    format!("{}:7", wan.host(zone, member)).parse().expect("an address")
}

/// How long this machine sleeps if it is asked for so many milliseconds, in milliseconds.
fn slept(ms: f64) -> f64 {
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(ms / 1e3));
    began.elapsed().as_secs_f64() * 1e3
}

/// Fails unless some round trip takes from `ms` to `ms + spare`, or is late by at most twice what the machine's own
/// timers are. No round trip may be early.
fn check_round_trip(
    wan: &Wan,
    from: (usize, usize),
    to: (usize, usize),
    ms: f64,
    spare: f64,
) -> Result<(), LocalError> {
    let (mut best, mut punctual) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..25 {
        best = best.min(round_trip(wan, from, to, 4, ms + spare)?);
        assert!(best >= ms, "{best} ms from {from:?} to {to:?} is less than {ms}");
        if best < ms + spare {
            eprintln!("a round trip from {from:?} to {to:?}: {best:.3} ms");
            return Ok(());
        }
        punctual = (0..4).map(|_| slept(ms / 2.0) - ms / 2.0).fold(punctual, f64::min);
    }
    eprintln!(
        "a round trip from {from:?} to {to:?}: {best:.3} ms; this machine's timers are {punctual:.3} ms late"
    );
    assert!(best < ms + spare + 2.0 * punctual, "{best} ms from {from:?} to {to:?} instead of {ms}");
    Ok(())
}

/// The shortest of several round trips between two members, in milliseconds; the first below `enough` is the last.
fn round_trip(
    wan: &Wan,
    from: (usize, usize),
    to: (usize, usize),
    count: u32,
    enough: f64,
) -> Result<f64, LocalError> {
    let (asks, answers) = (socket(wan, from.0, from.1)?, socket(wan, to.0, to.1)?);
    let target = address(wan, to.0, to.1);
    let lost = failed("hear from the other member");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while let Ok((len @ 1.., from)) = answers.recv_from(&mut buffer) {
                let _ = answers.send_to(&buffer[..len], from);
            }
        });
        let mut best = f64::INFINITY;
        // The first is for the neighbour tables.
        for n in 0..=count {
            let began = Instant::now();
            asks.send_to(&n.to_le_bytes(), target).map_err(failed("send"))?;
            let mut answer = [0; 64];
            let len = asks.recv(&mut answer).map_err(&lost)?;
            assert_eq!(&answer[..len], n.to_le_bytes());
            if n > 0 {
                best = best.min(began.elapsed().as_secs_f64() * 1e3);
            }
            if best < enough {
                break;
            }
        }
        asks.send_to(&[], target).map_err(failed("send"))?;
        Ok(best)
    })
}

/// Processor time that the delay line's thread, which is the only one of its name while these tests run, has used.
fn line_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let wan = tasks
        .map(|task| task.path())
        .filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "wan"));
    let nanos = wan.map(|task| {
        let stat = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

/// What one TCP stream brings from zone 0 to zone 1 in so long, from its first packet on, in Mbit/s.
fn stream(wan: &Wan, time: Duration) -> Result<f64, LocalError> {
    let listener = wan.within(1, 0, || TcpListener::bind("0.0.0.0:7"))?.map_err(failed("listen"))?;
    let target = address(wan, 1, 0);
    let mut sends = wan.within(0, 0, || TcpStream::connect(target))?.map_err(failed("connect"))?;
    let (mut receives, _) = listener.accept().map_err(failed("accept"))?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![7; 1 << 16];
            while began.elapsed() < time && sends.write_all(&block).is_ok() {}
        });
        let mut block = vec![0; 1 << 18];
        let mut bytes = 0;
        while began.elapsed() < time {
            match receives.read(&mut block).map_err(failed("receive"))? {
                0 => break,
                len => bytes += len,
            }
        }
        // So that the other end, which may be blocked, hears of it.
        drop(receives);
        Ok(bytes as f64 * 8e-6 / began.elapsed().as_secs_f64())
    })
}

#[test]
fn round_trip_matches_setting_and_zone_is_near() -> Test {
    if !has_networks() {
        return Ok(());
    }
    // Two near ones and a far one, and a zone beside that costs nothing.
    let links =
        [Link::of_round_trip(0, 1, Duration::from_micros(85_500)), Link::of_round_trip(0, 2, Duration::ZERO)];
    let mut wan = Wan::new(&[2, 1, 1], &links)?;
    // Half a millisecond later each way is what a timer of a virtual machine may be.
    check_round_trip(&wan, (0, 1), (1, 0), 85.5, 1.0)?;
    check_round_trip(&wan, (1, 0), (0, 0), 85.5, 1.0)?;
    // Over a line without delay, and within a zone.
    check_round_trip(&wan, (0, 0), (2, 0), 0.0, 0.5)?;
    check_round_trip(&wan, (0, 0), (0, 1), 0.0, 0.5)?;

    // No line between zones 1 and 2, and none inside a zone.
    assert!(round_trip_is_impossible(&wan, (1, 0), (2, 0))?, "there is no line from zone 1 to zone 2");
    assert!(wan.counters(1, 2).is_err());
    let there = wan.counters(0, 1)?;
    eprintln!("from zone 0 to zone 1: {there:?}");
    assert!(there.taken >= 5, "two round trips there, with an end, and two back");
    assert_eq!((there.delivered, there.lost, there.dropped), (there.taken, 0, 0));
    assert_eq!(wan.strays(), (1, 0));

    // The distance changes while it is in use.
    for (from, to) in [(0, 1), (1, 0)] {
        wan.set(from, to, Settings::of_delay(Duration::from_millis(10)))?;
    }
    check_round_trip(&wan, (0, 1), (1, 0), 20.0, 1.0)?;
    // Of one direction, too: 10 ms there, 30 back.
    wan.set(1, 0, Settings::of_delay(Duration::from_millis(30)))?;
    check_round_trip(&wan, (0, 1), (1, 0), 40.0, 1.0)
}

#[test]
fn jitter_is_to_both_sides_and_bounded() -> Test {
    if !has_networks() {
        return Ok(());
    }
    let mut link = Link::of_round_trip(0, 1, Duration::from_millis(40));
    link.there.jitter = Duration::from_millis(10);
    let wan = Wan::new(&[1, 1], &[link])?;
    let mut times = Vec::new();
    for _ in 0..40 {
        // One more before, for the neighbour tables.
        times.push(round_trip(&wan, (0, 0), (1, 0), 1, f64::INFINITY)?);
    }
    times.sort_by(f64::total_cmp);
    eprintln!("40 ms with a jitter of 10: {:.3} to {:.3}, half below {:.3}", times[0], times[39], times[20]);
    // That none of 40 is in the lower quarter happens once in 100,000 times. Late may be any.
    assert!((30.0..35.0).contains(&times[0]) && times[39] > 45.0, "{times:?}");
    Ok(())
}

fn round_trip_is_impossible(wan: &Wan, from: (usize, usize), to: (usize, usize)) -> Result<bool, LocalError> {
    let (asks, answers) = (socket(wan, from.0, from.1)?, socket(wan, to.0, to.1)?);
    answers.set_read_timeout(Some(Duration::from_millis(200))).map_err(failed("set a timeout"))?;
    asks.send_to(b"?", address(wan, to.0, to.1)).map_err(failed("send"))?;
    Ok(answers.recv(&mut [0; 8]).is_err())
}

#[test]
fn tcp_stream_respects_line_rate() -> Test {
    if !has_networks() {
        return Ok(());
    }
    let mut link = Link::of_round_trip(0, 1, Duration::from_millis(20));
    link.there.rate = Some(20_000_000);
    let mut wan = Wan::new(&[1, 1], &[link])?;
    let limited = stream(&wan, Duration::from_secs(1))?;
    wan.count_anew();
    let used = line_time();
    wan.set(0, 1, Settings::of_delay(Duration::from_millis(10)))?;
    let free = stream(&wan, Duration::from_secs(1))?;
    let used = line_time() - used;
    let megabits = wan.counters(0, 1)?.delivered_bytes as f64 * 8e-6;
    eprintln!("one TCP stream over 20 ms: {free:.0} Mbit/s; {limited:.1} through a line of 20 Mbit/s");
    assert!(free > 50.0, "{free} Mbit/s");
    assert!((1.0..20.0).contains(&limited), "{limited} Mbit/s through a line of 20");
    // The line's own bound, whatever else the machine does: what a core carries if it does nothing but this.
    let core = megabits / used.as_secs_f64().max(1e-9);
    eprintln!("the line's thread used {used:?} for {megabits:.0} Mbit: {core:.0} Mbit/s on one core");
    assert!(used > Duration::ZERO && core > 100.0, "{core} Mbit/s on one core");
    Ok(())
}

/// A rate is of IP packets, whatever carries them: small ones show it most.
#[test]
fn rate_counts_ip_packets() -> Test {
    const SENT: u64 = 200;
    if !has_networks() {
        return Ok(());
    }
    let mut link = Link::of_round_trip(0, 1, Duration::from_millis(2));
    // A packet of 40 bytes with its headers takes 4 ms.
    link.there.rate = Some(80_000);
    let mut wan = Wan::new(&[1, 1], &[link])?;
    // The first is for the neighbour tables.
    round_trip(&wan, (0, 0), (1, 0), 1, f64::INFINITY)?;
    std::thread::sleep(Duration::from_millis(100));
    wan.count_anew();
    let (sends, receives) = (socket(&wan, 0, 0)?, socket(&wan, 1, 0)?);
    let mut packet = [0; 12];
    let began = Instant::now();
    for _ in 0..SENT {
        sends.send_to(&packet, address(&wan, 1, 0)).map_err(failed("send"))?;
    }
    for _ in 0..SENT {
        receives.recv(&mut packet).map_err(failed("hear from the other member"))?;
    }
    let took = began.elapsed().as_secs_f64();
    let bytes = wan.counters(0, 1)?.delivered_bytes;
    eprintln!("{SENT} packets of 40 bytes took {took:.3} s at 80 kbit/s, and were {bytes} bytes");
    assert!((0.8..1.0).contains(&took), "{took} s");
    assert_eq!(bytes, SENT * 40);
    Ok(())
}

#[test]
fn line_loses_configured_share_of_packets() -> Test {
    const SENT: u64 = 3000;
    if !has_networks() {
        return Ok(());
    }
    let link = Link::of_round_trip(0, 1, Duration::from_millis(2));
    let mut wan = Wan::new(&[1, 1], &[link])?;
    // After an unanswered neighbour request the kernel drops packets to it for a second.
    round_trip(&wan, (0, 0), (1, 0), 1, f64::INFINITY)?;
    wan.set(0, 1, Settings { loss: 0.05, seed: 42, ..Settings::of_delay(Duration::from_millis(1)) })?;
    std::thread::sleep(Duration::from_millis(100));
    wan.count_anew();
    let (sends, receives) = (socket(&wan, 0, 0)?, socket(&wan, 1, 0)?);
    let target = address(&wan, 1, 0);
    receives.set_read_timeout(Some(Duration::from_millis(500))).map_err(failed("set a timeout"))?;
    let got = std::thread::scope(|scope| {
        let counts = scope.spawn(|| {
            let (mut got, mut last) = (0, None);
            let mut number = [0; 8];
            while receives.recv(&mut number).is_ok() {
                let this = u64::from_le_bytes(number);
                assert!(last.is_none_or(|last| last < this), "{this} came after {last:?}");
                (got, last) = (got + 1, Some(this));
            }
            got
        });
        for n in 0..SENT {
            sends.send_to(&n.to_le_bytes(), target).map_err(failed("send"))?;
            if n % 50 == 49 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        counts.join().map_err(|_| LocalError::Value("the receiver panicked".into()))
    })?;
    let there = wan.counters(0, 1)?;
    eprintln!("{got} of {SENT} came; the line says {there:?}");
    assert_eq!((there.taken, there.taken - there.lost, there.delivered), (SENT, got, got));
    let lost = there.lost;
    // 150 of 3000, with a standard deviation of 12.
    assert!((102..198).contains(&lost), "{lost} of {SENT} were lost");
    Ok(())
}
