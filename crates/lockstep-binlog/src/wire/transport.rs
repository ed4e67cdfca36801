//! Packets over one socket, with or without TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use super::packet::{Decoder, encode};
use super::reply::SqlError;
use super::tls::Session;

/// Bytes to gather before a write.
const GATHER: usize = 64 << 10;
/// A larger buffer, for a large event, is given back.
const BUFFER_KEPT: usize = 1 << 20;
/// Bytes that one [`Transport::poll`] takes, so that a peer that sends without end does not fill the memory.
const POLL_MAX: usize = 64 << 10;

/// One connection.
pub(super) struct Transport {
    stream: TcpStream,
    /// `None`: the bytes of the socket are packets.
    tls: Option<Box<Session>>,
    decoder: Decoder,
    input: Box<[u8]>,
    out: Vec<u8>,
    /// The number of the next packet to send.
    sequence: u8,
}

impl Transport {
    /// `write_timeout`: how long a write may wait for the peer to take bytes.
    pub(super) fn new(stream: TcpStream, limit: usize, write_timeout: Duration) -> io::Result<Transport> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(write_timeout))?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        Ok(Transport {
            stream,
            tls: None,
            decoder: Decoder::new(limit),
            input: vec![0; 4096].into_boxed_slice(),
            out: Vec::new(),
            sequence: 0,
        })
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.decoder.set_limit(limit);
    }

    /// Begins to encrypt, and shakes hands.
    pub(super) fn start_tls(&mut self, session: Session, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        // The client need not wait between its request and its first bytes of TLS.
        let rest = self.decoder.take_rest();
        self.tls = Some(Box::new(session));
        self.received(&rest)?;
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            if !self.receive(deadline)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Whether the connection is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Hands received bytes on to the decoder.
    fn received(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.decoder.push(bytes),
            Some(tls) => tls.decrypt(bytes, &mut self.stream, &mut self.decoder)?,
        }
        Ok(())
    }

    /// Hands the first bytes of the input on.
    fn take_input(&mut self, len: usize) -> io::Result<()> {
        let input = std::mem::take(&mut self.input);
        let taken = self.received(&input[..len]);
        self.input = input;
        taken
    }

    /// Waits until bytes arrive. False if the peer has closed the connection.
    fn receive(&mut self, deadline: Instant) -> io::Result<bool> {
        if self.tls.as_ref().is_some_and(|tls| tls.is_closed()) {
            return Ok(false);
        }
        // A peer that sends single bytes gets no more time.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(&mut self.input) {
            Ok(0) => return Ok(false),
            Ok(len) => self.take_input(len)?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Waits for a payload; `None` if the peer has closed the connection. The reply goes on from its number.
    pub(super) fn read(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + timeout;
        loop {
            let next = self.decoder.take().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            if let Some((payload, answer)) = next {
                self.sequence = answer;
                return Ok(Some(payload));
            }
            if !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }

    /// The next payload is a reply, so it has the number after the last packet sent.
    pub(super) fn expect_reply(&mut self) {
        self.decoder.expect(self.sequence);
    }

    /// Payloads that have arrived, without waiting; `None` if the peer has closed the connection. Those beyond some bytes stay
    /// in the socket for the next call.
    pub(super) fn poll(&mut self) -> io::Result<Option<Vec<Vec<u8>>>> {
        let (mut payloads, mut taken) = (Vec::new(), 0);
        while taken < POLL_MAX {
            if self.tls.as_ref().is_some_and(|tls| tls.is_closed()) {
                return Ok(None);
            }
            match recv(&self.stream, &mut self.input[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(None),
                Ok((len, _)) => {
                    taken += len;
                    self.take_input(len)?;
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            while let Some((payload, _)) =
                self.decoder.take().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?
            {
                payloads.push(payload);
            }
        }
        Ok(Some(payloads))
    }

    /// Adds a payload to those to be sent, and sends them if there are many. Whether it sent them.
    pub(super) fn queue(&mut self, parts: &[&[u8]]) -> io::Result<bool> {
        encode(parts, &mut self.sequence, &mut self.out);
        if self.out.len() < GATHER {
            return Ok(false);
        }
        self.flush()?;
        Ok(true)
    }

    /// Sends all that is queued.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(&self.out)?,
            Some(tls) => tls.write_all(&self.out, &mut self.stream)?,
        }
        self.out.clear();
        if self.out.capacity() > BUFFER_KEPT {
            self.out.shrink_to(GATHER);
        }
        Ok(())
    }

    /// Whether something is queued.
    pub(super) fn has_queued(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next packet sent has this number.
    pub(super) fn set_sequence(&mut self, sequence: u8) {
        self.sequence = sequence;
    }

    /// Sends one payload at once.
    pub(super) fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.queue(&[payload])?;
        self.flush()
    }

    /// Ends the connection in good order.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.stream);
        }
    }

    /// Sends an error.
    pub(super) fn fail(&mut self, error: &SqlError) -> io::Result<()> {
        self.send(&error.to_payload())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn flood_of_packets_is_taken_in_bounded_parts() {
        const PINGS: usize = 100_000;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let mut transport = Transport::new(server, 1 << 20, Duration::from_secs(60)).unwrap();
        let writer = std::thread::spawn(move || {
            let mut out = Vec::new();
            (0..PINGS).for_each(|_| encode(&[&[14]], &mut 0, &mut out));
            client.write_all(&out).unwrap();
            client
        });
        let (mut taken, deadline) = (0, Instant::now() + Duration::from_secs(60));
        while taken < PINGS {
            let payloads = transport.poll().unwrap().unwrap();
            assert!(payloads.len() <= (POLL_MAX + 4096) / 5, "{}", payloads.len());
            assert!(Instant::now() < deadline, "{taken}");
            taken += payloads.len();
        }
        drop(writer.join().unwrap());
        assert_eq!((taken, transport.poll().unwrap()), (PINGS, None));
    }
}
