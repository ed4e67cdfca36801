//! TLS between members over a blocking stream: for transfers beside the members' own connections, with the same certificates
//! and the same checks.

use super::{TlsIdentity, explain};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::IpAddr;

/// An encrypted stream, over any other one. Certificates are checked before the first byte passes.
pub struct TlsStream<S: Read + Write>(Side<S>);

enum Side<S: Read + Write> {
    Dialer(Box<StreamOwned<ClientConnection, S>>),
    Dialed(Box<StreamOwned<ServerConnection, S>>),
}

impl<S: Read + Write> std::fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsStream")
    }
}

impl TlsIdentity {
    /// Begins TLS at the side that has connected to `remote`.
    ///
    /// # Errors
    /// As of the stream; `InvalidData` if the peer is no member.
    pub fn dial<S: Read + Write>(&self, mut stream: S, remote: IpAddr) -> io::Result<TlsStream<S>> {
        let name = ServerName::IpAddress(remote.into());
        let mut tls = ClientConnection::new(self.client.clone(), name).map_err(invalid)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).map_err(explained)?;
        }
        Ok(TlsStream(Side::Dialer(Box::new(StreamOwned::new(tls, stream)))))
    }

    /// Begins TLS at the side that was connected to.
    ///
    /// # Errors
    /// As of the stream; `InvalidData` if the peer is no member.
    pub fn accept<S: Read + Write>(&self, mut stream: S) -> io::Result<TlsStream<S>> {
        let mut tls = ServerConnection::new(self.server.clone()).map_err(invalid)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).map_err(explained)?;
        }
        Ok(TlsStream(Side::Dialed(Box::new(StreamOwned::new(tls, stream)))))
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// TLS errors in words for people.
fn explained(error: io::Error) -> io::Error {
    let text =
        error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).map(explain::handshake);
    match text {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Side::Dialer(stream) => stream.read(into).map_err(explained),
            Side::Dialed(stream) => stream.read(into).map_err(explained),
        }
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Side::Dialer(stream) => stream.write(from).map_err(explained),
            Side::Dialed(stream) => stream.write(from).map_err(explained),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Side::Dialer(stream) => stream.flush().map_err(explained),
            Side::Dialed(stream) => stream.flush().map_err(explained),
        }
    }
}
