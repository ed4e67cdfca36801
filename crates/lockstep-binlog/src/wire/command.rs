//! Commands of clients.

use crate::codec::{DecodeError, Reader};

const COM_QUIT: u8 = 1;
const COM_QUERY: u8 = 3;
const COM_PING: u8 = 14;
pub(super) const COM_BINLOG_DUMP: u8 = 18;
pub(super) const COM_REGISTER_SLAVE: u8 = 21;
/// The first byte of a semi-synchronous replica's acknowledgement.
const ACK: u8 = 0xef;

/// End with EOF at the end of the stream instead of waiting.
pub const DUMP_NON_BLOCK: u16 = 1;
/// Send Annotate_rows events.
pub const DUMP_ANNOTATE: u16 = 2;

/// A command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// The client leaves.
    Quit,
    /// The client asks whether the server works.
    Ping,
    /// A statement.
    Query(Vec<u8>),
    /// A replica introduces itself.
    Register(Register),
    /// Requests the stream.
    Dump(Dump),
    /// Any other command.
    Other(u8),
}

/// A replica's introduction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Register {
    /// Its server id.
    pub server_id: u32,
    /// Its `report_host`.
    pub host: String,
    /// Its `report_port`.
    pub port: u16,
}

/// A request for the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dump {
    /// The position in the file.
    pub offset: u32,
    /// See [`DUMP_NON_BLOCK`] and [`DUMP_ANNOTATE`].
    pub flags: u16,
    /// The consumer's server id; 0 for a tool that does not wait.
    pub server_id: u32,
    /// The file; empty for the oldest one, or if the consumer has set a GTID state.
    pub file: String,
}

/// A semi-synchronous replica's acknowledgement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The position up to which the replica has received the file.
    pub offset: u64,
    /// The file.
    pub file: String,
}

impl Command {
    /// Parses a payload.
    ///
    /// # Errors
    /// [`DecodeError`] if it is empty, or a known command is malformed.
    pub fn parse(payload: &[u8]) -> Result<Command, DecodeError> {
        let mut r = Reader::new(payload);
        Ok(match r.u8()? {
            COM_QUIT => Command::Quit,
            COM_PING => Command::Ping,
            COM_QUERY => Command::Query(r.rest().to_vec()),
            COM_REGISTER_SLAVE => {
                let server_id = r.u32()?;
                let host = short_text(&mut r)?;
                let (_user, _password) = (short_text(&mut r)?, short_text(&mut r)?);
                let port = r.u16()?;
                // Rank and source id, which nobody uses.
                r.take(8)?;
                Command::Register(Register { server_id, host, port })
            }
            COM_BINLOG_DUMP => {
                let (offset, flags, server_id) = (r.u32()?, r.u16()?, r.u32()?);
                Command::Dump(Dump { offset, flags, server_id, file: file_name(r.rest())? })
            }
            other => Command::Other(other),
        })
    }
}

impl Ack {
    /// Parses a payload; `None` if it is no acknowledgement.
    ///
    /// # Errors
    /// [`DecodeError`] if it is a malformed one.
    pub fn parse(payload: &[u8]) -> Result<Option<Ack>, DecodeError> {
        let mut r = Reader::new(payload);
        if r.u8()? != ACK {
            return Ok(None);
        }
        Ok(Some(Ack { offset: r.u64()?, file: file_name(r.rest())? }))
    }
}

fn short_text(r: &mut Reader<'_>) -> Result<String, DecodeError> {
    let len = usize::from(r.u8()?);
    Ok(shown(r.take(len)?))
}

/// Text for status and logs: no control characters.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect()
}

fn file_name(bytes: &[u8]) -> Result<String, DecodeError> {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| DecodeError::Invalid("file name"))?;
    if name.len() > 511 || name.contains(char::is_control) {
        return Err(DecodeError::Invalid("file name"));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn register() -> Vec<u8> {
        let mut out = vec![COM_REGISTER_SLAVE];
        out.extend_from_slice(&9u32.to_le_bytes());
        for text in ["replica", "", ""] {
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(&3306u16.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        out
    }

    pub(crate) fn dump(file: &str, offset: u32, flags: u16, server_id: u32) -> Vec<u8> {
        let mut out = vec![COM_BINLOG_DUMP];
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&server_id.to_le_bytes());
        out.extend_from_slice(file.as_bytes());
        out
    }

    pub(crate) fn ack(file: &str, offset: u64) -> Vec<u8> {
        [&[ACK], offset.to_le_bytes().as_slice(), file.as_bytes()].concat()
    }

    #[test]
    fn commands_parse_and_truncated_ones_are_refused() {
        let host = "replica".to_owned();
        let expected = Command::Register(Register { server_id: 9, host, port: 3306 });
        assert_eq!(Command::parse(&register()), Ok(expected));
        for cut in 0..register().len() {
            assert!(Command::parse(&register()[..cut]).is_err());
        }
        let bytes = dump("bin.000001", 4, DUMP_ANNOTATE, 9);
        let file = "bin.000001".to_owned();
        let expected = Dump { offset: 4, flags: DUMP_ANNOTATE, server_id: 9, file };
        assert_eq!(Command::parse(&bytes), Ok(Command::Dump(expected)));
        for cut in 0..11 {
            assert!(Command::parse(&bytes[..cut]).is_err());
        }
        assert_eq!(Command::parse(&[9]), Ok(Command::Other(9)));
        assert_eq!(Command::parse(&[1]), Ok(Command::Quit));
    }

    #[test]
    fn acknowledgement_parses_and_other_payloads_are_none() {
        let bytes = ack("bin.000002", 77);
        let expected = Ack { offset: 77, file: "bin.000002".into() };
        assert_eq!(Ack::parse(&bytes), Ok(Some(expected)));
        assert!(Ack::parse(&bytes[..8]).is_err());
        assert_eq!(Ack::parse(&[COM_PING]), Ok(None));
    }
}
