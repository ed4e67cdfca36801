//! TLS for consumers: one connection's encryption. Members speak TLS 1.3 only, but clients of a database may be old.
//!
//! A client asks for it after the greeting: it sends the first 32 bytes of its reply, then the TLS handshake, and then the
//! whole reply.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use lockstep_net::tls::acceptor::{AcceptorError, AcceptorFiles, TlsAcceptor};
use rustls::{ServerConnection, SupportedProtocolVersion};

use super::packet::Decoder;

/// The versions of TLS that are spoken with consumers and with database servers.
pub(super) static VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// Reads the files of the certificate that consumers see.
///
/// # Errors
/// [`AcceptorError`] if one cannot be used.
pub fn acceptor(files: AcceptorFiles) -> Result<TlsAcceptor, AcceptorError> {
    TlsAcceptor::load_for(files, VERSIONS)
}

/// The encryption of one connection. The caller reads from the socket.
pub(super) struct Session {
    tls: ServerConnection,
    /// The client has ended its side.
    closed: bool,
}

impl Session {
    /// The encryption of a new connection.
    pub(super) fn new(acceptor: &TlsAcceptor) -> io::Result<Session> {
        let tls = ServerConnection::new(acceptor.config()).map_err(io::Error::other)?;
        Ok(Session { tls, closed: false })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the client has ended its side in good order.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Decrypts received bytes into the decoder, and writes answers of TLS itself, such as those of the handshake.
    pub(super) fn decrypt(
        &mut self,
        mut raw: &[u8],
        socket: &mut TcpStream,
        to: &mut Decoder,
    ) -> io::Result<()> {
        while !raw.is_empty() && !self.closed {
            self.tls.read_tls(&mut raw)?;
            match self.tls.process_new_packets() {
                Ok(state) => {
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    self.tls.reader().read_exact(&mut plain)?;
                    to.push(&plain);
                    self.closed = state.peer_has_closed();
                }
                Err(error) => {
                    // The alert says why. A peer that is gone does not need it.
                    let _ = self.flush(socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        self.flush(socket)
    }

    /// Encrypts and writes all of these bytes.
    pub(super) fn write_all(&mut self, mut plain: &[u8], socket: &mut TcpStream) -> io::Result<()> {
        while !plain.is_empty() {
            // The session's buffer is bounded.
            let taken = self.tls.writer().write(plain)?;
            plain = &plain[taken..];
            self.flush(socket)?;
        }
        Ok(())
    }

    /// Tells the client that nothing more comes: without that, a client cannot tell the end from a cut connection.
    pub(super) fn close(&mut self, socket: &mut TcpStream) {
        self.tls.send_close_notify();
        // The client may be gone.
        let _ = self.flush(socket);
    }

    fn flush(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(socket)?;
        }
        Ok(())
    }
}
