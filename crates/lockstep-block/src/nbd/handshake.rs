//! The handshake (fixed newstyle) without I/O: from the greeting to the transmission phase.
//!
//! The caller passes received bytes to [`Handshake::next`] and sends the bytes of [`Handshake::take_output`] after each call,
//! before it acts on the returned [`Step`].
//!
//! After `NBD_OPT_STARTTLS` nothing holds that was agreed before, and bytes that the client sent behind that option without
//! encryption end the connection. Otherwise an attacker on the line could put options in front of the client's own.

use bytes::{Buf, BufMut, BytesMut};

use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, EXPORT_PADDING, Fields, GREETING, OPTION, OPTION_HEADER, OPTION_MAX,
    OPTION_REPLY, PAYLOAD_MAX, STRING_MAX, Violation, export_flag, handshake_flag, info, option,
    option_reply as reply, shortened, string,
};
use crate::export::{Description, Export, Refusal, RefusalKind};

/// The exports, as far as the handshake asks for them without an attachment.
pub(crate) trait Catalogue {
    fn names(&self) -> Vec<String>;
    fn describe(&self, name: &str) -> Result<Description, Refusal>;
}

impl<E: Export> Catalogue for E {
    fn names(&self) -> Vec<String> {
        Export::names(self)
    }

    fn describe(&self, name: &str) -> Result<Description, Refusal> {
        Export::describe(self, name)
    }
}

/// Whether connections are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsMode {
    Off,
    Optional,
    Required,
}

/// The caller's next act.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Receive more bytes.
    Receive,
    /// Attach to the export, then call [`Handshake::attached`] or [`Handshake::refused`].
    Attach(Request),
    /// Begin TLS, then go on with an empty input.
    StartTls,
    /// Close the connection: the client has left.
    Close,
}

/// A client's request for the transmission phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) name: String,
    /// The kinds of information that the client asks for; `None`: `NBD_OPT_EXPORT_NAME`, which has no replies.
    wanted: Option<Wanted>,
}

/// A set of kinds of information.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Wanted {
    name: bool,
    description: bool,
    block_size: bool,
}

/// The result of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Agreed {
    /// Whether replies are structured.
    pub(crate) structured: bool,
    /// Whether the client may ask for extents.
    pub(crate) allocation: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The client's flags are expected.
    Flags,
    /// An option is expected.
    Option,
    /// The data of an option is too long. So many bytes of it are still skipped.
    Skip { option: u32, left: u32 },
}

/// One connection's handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    tls: TlsMode,
    encrypted: bool,
    state: State,
    output: BytesMut,
    /// The client knows fixed newstyle. Without it only `NBD_OPT_EXPORT_NAME` is allowed.
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client selected `base:allocation`.
    allocation_of: Option<String>,
}

impl Handshake {
    /// A handshake that has its greeting to send.
    pub(crate) fn new(tls: TlsMode) -> Handshake {
        let mut output = BytesMut::with_capacity(256);
        output.put_u64(GREETING);
        output.put_u64(OPTION);
        output.put_u16(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        Handshake {
            tls,
            encrypted: false,
            state: State::Flags,
            output,
            fixed: false,
            no_zeroes: false,
            structured: false,
            allocation_of: None,
        }
    }

    /// The bytes to send.
    pub(crate) fn take_output(&mut self) -> BytesMut {
        self.output.split()
    }

    /// Goes on with these received bytes, and removes those that it has used.
    pub(crate) fn next(&mut self, input: &mut BytesMut, exports: &impl Catalogue) -> Result<Step, Violation> {
        loop {
            match self.state {
                State::Flags => {
                    let Some(flags) = Fields::new(input).u32() else { return Ok(Step::Receive) };
                    input.advance(4);
                    self.take_flags(flags)?;
                    self.state = State::Option;
                }
                State::Skip { option, left } => {
                    let skipped = input.len().min(left as usize);
                    input.advance(skipped);
                    let left = left - skipped as u32;
                    self.state = State::Skip { option, left };
                    if left > 0 {
                        return Ok(Step::Receive);
                    }
                    self.reply_error(option, reply::TOO_BIG, "the data of this option is too long");
                    self.state = State::Option;
                }
                State::Option => {
                    let mut fields = Fields::new(input);
                    let header = (|| Some((fields.u64()?, fields.u32()?, fields.u32()?)))();
                    let Some((magic, option, length)) = header else { return Ok(Step::Receive) };
                    if magic != OPTION {
                        return Err(Violation("an option does not begin with IHAVEOPT"));
                    }
                    if length as usize > OPTION_MAX {
                        if option == option::EXPORT_NAME {
                            return Err(Violation("the export's name is too long"));
                        }
                        input.advance(OPTION_HEADER);
                        self.state = State::Skip { option, left: length };
                        continue;
                    }
                    if input.len() < OPTION_HEADER + length as usize {
                        return Ok(Step::Receive);
                    }
                    input.advance(OPTION_HEADER);
                    let data = input.split_to(length as usize);
                    match self.option(option, &data, exports)? {
                        Step::Receive => {}
                        Step::StartTls if !input.is_empty() => {
                            return Err(Violation("bytes without encryption follow STARTTLS"));
                        }
                        step => return Ok(step),
                    }
                }
            }
        }
    }

    fn take_flags(&mut self, flags: u32) -> Result<(), Violation> {
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return Err(Violation("the client sets flags that the server does not know"));
        }
        self.fixed = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        Ok(())
    }

    /// Answers one option. [`Step::Receive`]: the next option may follow.
    fn option(&mut self, option: u32, data: &[u8], exports: &impl Catalogue) -> Result<Step, Violation> {
        if !self.fixed && option != option::EXPORT_NAME {
            return Err(Violation("a client without fixed newstyle may only name an export"));
        }
        let needs_tls = self.tls == TlsMode::Required && !self.encrypted;
        match option {
            option::EXPORT_NAME if needs_tls => {
                return Err(Violation("the client does not use TLS, which is required here"));
            }
            option::EXPORT_NAME => {
                let name = string(data).ok_or(Violation("the export's name is not a string"))?;
                return Ok(Step::Attach(Request { name: name.to_owned(), wanted: None }));
            }
            option::ABORT => {
                self.reply(option, reply::ACK, &[]);
                return Ok(Step::Close);
            }
            option::STARTTLS => return Ok(self.start_tls(data)),
            _ if needs_tls => {
                self.reply_error(option, reply::TLS_REQUIRED, "this server requires TLS");
            }
            option::LIST => self.list(data, exports),
            option::INFO | option::GO => return Ok(self.info_or_go(option, data, exports)),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(option, reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY => self.reply_error(option, reply::INVALID, "this option has no data"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, exports),
            _ => self.reply_error(option, reply::UNSUPPORTED, "this server does not know this option"),
        }
        Ok(Step::Receive)
    }

    fn start_tls(&mut self, data: &[u8]) -> Step {
        let option = option::STARTTLS;
        if !data.is_empty() || self.encrypted {
            let why = if self.encrypted { "TLS has begun already" } else { "this option has no data" };
            self.reply_error(option, reply::INVALID, why);
            return Step::Receive;
        }
        if self.tls == TlsMode::Off {
            self.reply_error(option, reply::POLICY, "this server has no certificate for TLS");
            return Step::Receive;
        }
        self.reply(option, reply::ACK, &[]);
        self.encrypted = true;
        self.structured = false;
        self.allocation_of = None;
        Step::StartTls
    }

    fn list(&mut self, data: &[u8], exports: &impl Catalogue) {
        if !data.is_empty() {
            return self.reply_error(option::LIST, reply::INVALID, "this option has no data");
        }
        for name in exports.names() {
            let name = shortened(&name, STRING_MAX).as_bytes();
            self.reply(option::LIST, reply::SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
        }
        self.reply(option::LIST, reply::ACK, &[]);
    }

    fn info_or_go(&mut self, option: u32, data: &[u8], exports: &impl Catalogue) -> Step {
        let Some((name, wanted)) = parse_info(data) else {
            self.reply_error(option, reply::INVALID, "the name or the list of kinds is not valid");
            return Step::Receive;
        };
        let described = match exports.describe(name) {
            Ok(described) => described,
            Err(refusal) => {
                self.reply_refusal(option, &refusal);
                return Step::Receive;
            }
        };
        // Clients assume that requests of 512 bytes are possible unless they have learnt otherwise.
        if described.minimum_block > 512 && !wanted.block_size {
            let why = "this export has a minimum size of requests: ask for NBD_INFO_BLOCK_SIZE";
            self.reply_error(option, reply::BLOCK_SIZE_REQUIRED, why);
            return Step::Receive;
        }
        if option == option::INFO {
            self.reply_info(option, name, wanted, &described);
            return Step::Receive;
        }
        Step::Attach(Request { name: name.to_owned(), wanted: Some(wanted) })
    }

    fn contexts(&mut self, option: u32, data: &[u8], exports: &impl Catalogue) {
        let selects = option == option::SET_META_CONTEXT;
        if selects {
            // Also after an error: an earlier selection does not hold any more.
            self.allocation_of = None;
        }
        if !self.structured {
            return self.reply_error(option, reply::INVALID, "structured replies must be agreed before");
        }
        let Some((name, queries)) = parse_contexts(data) else {
            return self.reply_error(option, reply::INVALID, "the name or the queries are not valid");
        };
        if let Err(refusal) = exports.describe(name) {
            return self.reply_refusal(option, &refusal);
        }
        let found = match queries {
            Queries { count: 0, .. } => !selects,
            Queries { allocation, namespace, .. } => allocation || (namespace && !selects),
        };
        if found {
            let id = if selects { BASE_ALLOCATION_ID } else { 0 };
            self.reply(option, reply::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
            if selects {
                self.allocation_of = Some(name.to_owned());
            }
        }
        self.reply(option, reply::ACK, &[]);
    }

    /// Queues the last reply to a client that is attached. The transmission phase follows, under the returned terms.
    pub(crate) fn attached(&mut self, request: &Request, described: &Description) -> Agreed {
        match request.wanted {
            Some(wanted) => self.reply_info(option::GO, &request.name, wanted, described),
            None => {
                self.output.put_u64(described.size);
                self.output.put_u16(self.export_flags(described));
                if !self.no_zeroes {
                    self.output.put_bytes(0, EXPORT_PADDING);
                }
            }
        }
        // A selection holds for the export that it named, and no other.
        let allocation = self.structured && self.allocation_of.as_ref() == Some(&request.name);
        Agreed { structured: self.structured, allocation }
    }

    /// The client may not attach. Whether the handshake goes on: `NBD_OPT_EXPORT_NAME` has no reply for an error.
    #[must_use]
    pub(crate) fn refused(&mut self, request: &Request, refusal: &Refusal) -> bool {
        if request.wanted.is_some() {
            self.reply_refusal(option::GO, refusal);
        }
        request.wanted.is_some()
    }

    fn export_flags(&self, described: &Description) -> u16 {
        let mut flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::CAN_MULTI_CONN
            | export_flag::SEND_CACHE;
        if self.structured {
            flags |= export_flag::SEND_DF;
        }
        if described.read_only {
            return flags | export_flag::READ_ONLY;
        }
        flags |= export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES;
        if described.fast_zeroes {
            flags |= export_flag::SEND_FAST_ZERO;
        }
        flags
    }

    fn reply_info(&mut self, option: u32, name: &str, wanted: Wanted, described: &Description) {
        let flags = self.export_flags(described);
        self.reply(
            option,
            reply::INFO,
            &[&info::EXPORT.to_be_bytes(), &described.size.to_be_bytes(), &flags.to_be_bytes()],
        );
        if wanted.name {
            self.reply(option, reply::INFO, &[&info::NAME.to_be_bytes(), name.as_bytes()]);
        }
        if wanted.description && !described.text.is_empty() {
            let text = shortened(&described.text, STRING_MAX);
            self.reply(option, reply::INFO, &[&info::DESCRIPTION.to_be_bytes(), text.as_bytes()]);
        }
        // Also for a client that does not ask: one that does not know it skips it.
        let sizes = [described.minimum_block, described.preferred_block, PAYLOAD_MAX].map(u32::to_be_bytes);
        let parts = [&info::BLOCK_SIZE.to_be_bytes()[..], &sizes[0], &sizes[1], &sizes[2]];
        self.reply(option, reply::INFO, &parts);
        self.reply(option, reply::ACK, &[]);
    }

    fn reply_refusal(&mut self, option: u32, refusal: &Refusal) {
        let kind = match refusal.kind {
            RefusalKind::Unknown => reply::UNKNOWN,
            RefusalKind::Policy => reply::POLICY,
            RefusalKind::Shutdown => reply::SHUTDOWN,
        };
        self.reply_error(option, kind, &refusal.text);
    }

    fn reply_error(&mut self, option: u32, kind: u32, text: &str) {
        self.reply(option, kind, &[shortened(text, STRING_MAX).as_bytes()]);
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.output.put_u64(OPTION_REPLY);
        self.output.put_u32(option);
        self.output.put_u32(kind);
        self.output.put_u32(length as u32);
        for part in parts {
            self.output.put_slice(part);
        }
    }
}

fn parse_info(data: &[u8]) -> Option<(&str, Wanted)> {
    let mut fields = Fields::new(data);
    let (name, count) = (fields.string()?, fields.u16()?);
    let mut wanted = Wanted::default();
    for _ in 0..count {
        match fields.u16()? {
            info::NAME => wanted.name = true,
            info::DESCRIPTION => wanted.description = true,
            info::BLOCK_SIZE => wanted.block_size = true,
            // The export's size is sent in any case.
            _ => {}
        }
    }
    fields.is_empty().then_some((name, wanted))
}

/// The queries for contexts, as far as they concern the only context.
struct Queries {
    count: u32,
    /// One is `base:allocation`.
    allocation: bool,
    /// One is `base:`, which lists all contexts of that namespace and selects none.
    namespace: bool,
}

fn parse_contexts(data: &[u8]) -> Option<(&str, Queries)> {
    let mut fields = Fields::new(data);
    let (name, count) = (fields.string()?, fields.u32()?);
    let mut queries = Queries { count, allocation: false, namespace: false };
    for _ in 0..count {
        match fields.string()? {
            BASE_ALLOCATION => queries.allocation = true,
            "base:" => queries.namespace = true,
            _ => {}
        }
    }
    fields.is_empty().then_some((name, queries))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A writable export `disk` with block sizes, and a refusal for others.
    pub(crate) struct Shelf(pub(crate) Description);

    impl Catalogue for Shelf {
        fn names(&self) -> Vec<String> {
            vec!["disk".into(), "snapshot".into()]
        }

        fn describe(&self, name: &str) -> Result<Description, Refusal> {
            match name {
                "disk" | "" => Ok(self.0.clone()),
                _ => Err(Refusal::new(RefusalKind::Unknown, format!("no export is named {name}"))),
            }
        }
    }

    pub(crate) fn shelf() -> Shelf {
        Shelf(Description { text: "a disk".into(), ..Description::new(1 << 20) })
    }

    /// The client's flags.
    pub(crate) fn flags(flags: u32) -> Vec<u8> {
        flags.to_be_bytes().to_vec()
    }

    pub(crate) fn option(option: u32, data: &[u8]) -> Vec<u8> {
        let mut out = OPTION.to_be_bytes().to_vec();
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        out
    }

    pub(crate) fn string_of(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
    }

    /// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
    pub(crate) fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
        let mut out = string_of(name);
        out.extend((kinds.len() as u16).to_be_bytes());
        kinds.iter().for_each(|kind| out.extend(kind.to_be_bytes()));
        out
    }

    /// The data of the options about contexts.
    pub(crate) fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut out = string_of(name);
        out.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| out.extend(string_of(query)));
        out
    }

    /// A complete handshake of a modern client.
    pub(crate) fn modern() -> Vec<u8> {
        [
            flags(3),
            option(option::STRUCTURED_REPLY, &[]),
            option(option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"])),
            option(option::GO, &info_data("disk", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE])),
        ]
        .concat()
    }

    /// Replies: the option, the type, and the data.
    pub(crate) fn parse_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let mut replies = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(bytes.get_u64(), OPTION_REPLY);
            let (option, kind, length) = (bytes.get_u32(), bytes.get_u32(), bytes.get_u32() as usize);
            replies.push((option, kind, bytes[..length].to_vec()));
            bytes = &bytes[length..];
        }
        replies
    }

    struct Talk {
        handshake: Handshake,
        shelf: Shelf,
    }

    impl Talk {
        fn new(tls: TlsMode) -> Talk {
            Talk::with_flags(tls, 3)
        }

        fn with_flags(tls: TlsMode, client_flags: u32) -> Talk {
            let mut talk = Talk { handshake: Handshake::new(tls), shelf: shelf() };
            let greeting = talk.handshake.take_output();
            assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
            assert_eq!(&greeting[16..], [0, 3]);
            assert_eq!(talk.raw(&flags(client_flags)).unwrap(), Step::Receive);
            talk
        }

        fn raw(&mut self, bytes: &[u8]) -> Result<Step, Violation> {
            let mut input = BytesMut::from(bytes);
            let step = self.handshake.next(&mut input, &self.shelf);
            assert!(step.is_err() || input.is_empty(), "all is used: {step:?}");
            step
        }

        /// Sends an option that is answered: types and data of its replies.
        fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
            self.raw(&option(number, data)).unwrap();
            let replies = parse_replies(&self.handshake.take_output());
            assert!(replies.iter().all(|reply| reply.0 == number));
            replies.into_iter().map(|(_, kind, data)| (kind, data)).collect()
        }

        fn kinds(&mut self, number: u32, data: &[u8]) -> Vec<u32> {
            self.option(number, data).into_iter().map(|(kind, _)| kind).collect()
        }

        fn attach(&mut self, bytes: &[u8]) -> Request {
            match self.raw(bytes).unwrap() {
                Step::Attach(request) => request,
                step => panic!("{step:?}"),
            }
        }

        fn attached(&mut self, request: &Request) -> Agreed {
            let described = self.shelf.0.clone();
            self.handshake.attached(request, &described)
        }
    }

    #[test]
    fn modern_client_gets_structured_replies_and_contexts() {
        let mut talk = Talk::new(TlsMode::Off);
        let request = talk.attach(&modern()[4..]);
        assert_eq!(request.name, "disk");
        let replies = parse_replies(&talk.handshake.take_output());
        let kinds: Vec<_> = replies.iter().map(|reply| reply.1).collect();
        assert_eq!(kinds, [reply::ACK, reply::META_CONTEXT, reply::ACK]);
        assert_eq!(replies[1].2, [&BASE_ALLOCATION_ID.to_be_bytes()[..], b"base:allocation"].concat());
        assert_eq!(talk.attached(&request), Agreed { structured: true, allocation: true });
        let replies = parse_replies(&talk.handshake.take_output());
        let mut infos: Vec<Vec<u8>> = replies.iter().map(|reply| reply.2.clone()).collect();
        assert_eq!(infos.pop(), Some(Vec::new()), "the acknowledgement");
        let mut export = &infos[0][..];
        assert_eq!((export.get_u16(), export.get_u64()), (info::EXPORT, 1 << 20));
        assert_eq!(export.get_u16(), 0b1101_1110_1101, "all but READ_ONLY and ROTATIONAL");
        assert_eq!(infos[1], b"\x00\x01disk");
        assert_eq!(infos[2], b"\x00\x02a disk");
        assert_eq!(infos[3], [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn export_name_is_answered_with_or_without_padding() {
        for (client_flags, length) in [(1, 134), (3, 10), (0, 134), (2, 10)] {
            let mut talk = Talk::with_flags(TlsMode::Off, client_flags);
            let request = talk.attach(&option(option::EXPORT_NAME, b"disk"));
            assert_eq!(talk.attached(&request), Agreed { structured: false, allocation: false });
            let mut output = talk.handshake.take_output();
            assert_eq!(output.len(), length);
            assert_eq!(output.get_u64(), 1 << 20);
            assert_eq!(output.get_u16() & export_flag::SEND_DF, 0);
        }
    }

    #[test]
    fn refused_export_name_ends_the_connection_and_go_does_not() {
        let refusal = Refusal::new(RefusalKind::Policy, "attached elsewhere");
        let mut talk = Talk::new(TlsMode::Off);
        let request = talk.attach(&option(option::GO, &info_data("disk", &[])));
        assert!(talk.handshake.refused(&request, &refusal));
        let replies = parse_replies(&talk.handshake.take_output());
        assert_eq!(replies, [(option::GO, reply::POLICY, b"attached elsewhere".to_vec())]);
        let request = talk.attach(&option(option::EXPORT_NAME, b"disk"));
        assert!(!talk.handshake.refused(&request, &refusal));
        assert!(talk.handshake.take_output().is_empty());
    }

    #[test]
    fn info_describes_without_attaching() {
        let mut talk = Talk::new(TlsMode::Off);
        let data = info_data("disk", &[]);
        assert_eq!(talk.kinds(option::INFO, &data), [reply::INFO, reply::INFO, reply::ACK]);
        assert_eq!(talk.kinds(option::INFO, &info_data("other", &[])), [reply::UNKNOWN]);
        talk.shelf.0.minimum_block = 4096;
        assert_eq!(talk.kinds(option::INFO, &data), [reply::BLOCK_SIZE_REQUIRED]);
        assert_eq!(talk.kinds(option::GO, &data), [reply::BLOCK_SIZE_REQUIRED]);
        let data = info_data("disk", &[info::BLOCK_SIZE, 77]);
        assert_eq!(talk.kinds(option::INFO, &data), [reply::INFO, reply::INFO, reply::ACK]);
    }

    #[test]
    fn malformed_options_are_invalid_and_unknown_ones_unsupported() {
        let mut talk = Talk::new(TlsMode::Off);
        let long_name = info_data(&"x".repeat(STRING_MAX + 1), &[]);
        let mut more = info_data("disk", &[]);
        more.push(0);
        let mut less = info_data("disk", &[0]);
        less.pop();
        for data in [&b""[..], b"\xff\xff\xff\xff", &long_name, &more, &less, &info_data("a\0b", &[])] {
            assert_eq!(talk.kinds(option::GO, data), [reply::INVALID]);
        }
        assert_eq!(talk.kinds(option::LIST, b"x"), [reply::INVALID]);
        assert_eq!(talk.kinds(option::STRUCTURED_REPLY, b"x"), [reply::INVALID]);
        // PEEK_EXPORT, EXTENDED_HEADERS, and one that does not exist.
        for number in [4, 11, 4_000_000_000] {
            assert_eq!(talk.kinds(number, b"data"), [reply::UNSUPPORTED]);
        }
    }

    #[test]
    fn too_long_data_is_skipped_without_being_kept() {
        let mut talk = Talk::new(TlsMode::Off);
        let mut header = option(option::GO, &[]);
        header[12..].copy_from_slice(&(1_000_000u32).to_be_bytes());
        assert_eq!(talk.raw(&header).unwrap(), Step::Receive);
        for _ in 0..9 {
            assert_eq!(talk.raw(&[0; 100_000]).unwrap(), Step::Receive);
        }
        assert!(talk.handshake.take_output().is_empty());
        assert_eq!(talk.raw(&[0; 100_000]).unwrap(), Step::Receive);
        let replies = parse_replies(&talk.handshake.take_output());
        assert_eq!((replies.len(), replies[0].1), (1, reply::TOO_BIG));
        assert_eq!(talk.kinds(option::LIST, b""), [reply::SERVER, reply::SERVER, reply::ACK]);
    }

    #[test]
    fn contexts_need_structured_replies_and_hold_for_one_export() {
        let set = option::SET_META_CONTEXT;
        let mut talk = Talk::new(TlsMode::Off);
        let data = context_data("disk", &["base:allocation", "base:allocation", "x-other:a"]);
        assert_eq!(talk.kinds(set, &data), [reply::INVALID]);
        talk.option(option::STRUCTURED_REPLY, b"");
        assert_eq!(talk.kinds(set, &data), [reply::META_CONTEXT, reply::ACK]);
        let other = talk.attach(&option(option::GO, &info_data("", &[])));
        assert!(!talk.attached(&other).allocation, "it was selected for disk");
        talk.handshake.take_output();
        assert_eq!(talk.kinds(set, &context_data("other", &["base:allocation"])), [reply::UNKNOWN]);
        let disk = talk.attach(&option(option::GO, &info_data("disk", &[])));
        assert!(!talk.attached(&disk).allocation, "a failed selection clears the one before");
    }

    #[test]
    fn context_queries_select_less_than_they_list() {
        let mut talk = Talk::new(TlsMode::Off);
        talk.option(option::STRUCTURED_REPLY, b"");
        let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
        let (found, none) = (vec![reply::META_CONTEXT, reply::ACK], vec![reply::ACK]);
        let cases: [(&[&str], _, _); 4] = [
            (&[], &found, &none),
            (&["base:"], &found, &none),
            (&["base:allocation"], &found, &found),
            (&["base:allocations", "qemu:dirty-bitmap:"], &none, &none),
        ];
        for (queries, listed, selected) in cases {
            let data = context_data("disk", queries);
            assert_eq!(&talk.kinds(list, &data), listed, "{queries:?}");
            assert_eq!(&talk.kinds(set, &data), selected, "{queries:?}");
        }
        let mut data = context_data("disk", &["base:"]);
        data.push(0);
        assert_eq!(talk.kinds(list, &data), [reply::INVALID]);
    }

    #[test]
    fn required_tls_refuses_all_other_options() {
        let mut talk = Talk::new(TlsMode::Required);
        for number in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 99] {
            assert_eq!(talk.kinds(number, b""), [reply::TLS_REQUIRED]);
        }
        assert!(talk.raw(&option(option::EXPORT_NAME, b"disk")).is_err());
        assert_eq!(talk.raw(&option(option::ABORT, b"")).unwrap(), Step::Close);
    }

    #[test]
    fn tls_forgets_what_was_agreed_before() {
        let mut talk = Talk::new(TlsMode::Optional);
        talk.option(option::STRUCTURED_REPLY, b"");
        talk.option(option::SET_META_CONTEXT, &context_data("disk", &["base:allocation"]));
        assert_eq!(talk.raw(&option(option::STARTTLS, b"")).unwrap(), Step::StartTls);
        talk.handshake.take_output();
        assert_eq!(talk.kinds(option::STARTTLS, b""), [reply::INVALID]);
        let request = talk.attach(&option(option::GO, &info_data("disk", &[])));
        assert_eq!(talk.attached(&request), Agreed { structured: false, allocation: false });
    }

    #[test]
    fn bytes_behind_starttls_end_the_connection() {
        let mut talk = Talk::new(TlsMode::Optional);
        let both = [option(option::STARTTLS, b""), option(option::LIST, b"")].concat();
        assert!(talk.raw(&both).is_err());
    }

    #[test]
    fn starttls_without_a_certificate_is_refused() {
        let mut talk = Talk::new(TlsMode::Off);
        assert_eq!(talk.kinds(option::STARTTLS, b""), [reply::POLICY]);
        assert_eq!(talk.kinds(option::STARTTLS, b"x"), [reply::INVALID]);
    }

    #[test]
    fn violations_end_the_handshake() {
        assert!(Handshake::new(TlsMode::Off).next(&mut flags(4)[..].into(), &shelf()).is_err());
        let mut talk = Talk::with_flags(TlsMode::Off, 0);
        assert!(talk.raw(&option(option::LIST, b"")).is_err(), "not fixed newstyle");
        for bytes in [&b"IHAVEOPX\0\0\0\x03\0\0\0\0"[..], &option(option::EXPORT_NAME, b"\xff")] {
            assert!(Talk::new(TlsMode::Off).raw(bytes).is_err());
        }
        let mut long = option(option::EXPORT_NAME, b"");
        long[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(Talk::new(TlsMode::Off).raw(&long).is_err());
    }

    #[test]
    fn read_only_export_offers_no_writes() {
        let mut talk = Talk::new(TlsMode::Off);
        talk.shelf.0.read_only = true;
        let infos = talk.option(option::INFO, &info_data("disk", &[]));
        let flags = (&infos[0].1[10..]).get_u16();
        let writes = export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES | export_flag::SEND_FAST_ZERO;
        assert_eq!(flags & (writes | export_flag::READ_ONLY), export_flag::READ_ONLY);
    }
}
