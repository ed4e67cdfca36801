//! Listens for consumers; one thread for each connection.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::TlsAcceptor;
use super::accounts::Accounts;
use super::command::{Command, Register};
use super::consumers::{Consumer, Consumers, Registered};
use super::dump::{self, Limits, Source};
use super::handshake::{HandshakeReply, Scramble, greeting, is_tls_request, switch_request};
use super::reply::{SqlError, ok};
use super::session::{Answer, NOT_ANSWERED, Session, Settings, Sources};
use super::sql_client::{SqlClient, SqlClientError, Target};
use super::tls;
use super::transport::Transport;
use crate::library::Library;

/// The longest payload before a client has signed in, and the longest command after.
const HANDSHAKE_MAX: usize = 16 << 10;
const COMMAND_MAX: usize = 1 << 20;
/// How long an accept that failed waits before the next one, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const STACK: usize = 512 << 10;

/// How a server serves.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Values for the statements of connections.
    pub settings: Settings,
    /// The accounts that may sign in.
    pub accounts: Accounts,
    /// The certificate for connections with TLS; `None`: TLS is not offered.
    pub tls: Option<Arc<TlsAcceptor>>,
    /// Whether a connection without TLS is refused.
    pub require_tls: bool,
    /// The server and the account for statements that are not answered here; `None`: they are refused.
    pub upstream: Option<Target>,
    /// Connections at the same time; another one is refused with error 1040.
    pub max_connections: usize,
    /// How long a client may take to sign in.
    pub handshake_timeout: Duration,
    /// How long a connection without a stream may be idle.
    pub idle_timeout: Duration,
    /// How long a write waits for a consumer to take bytes.
    pub write_timeout: Duration,
    /// See [`Limits::catch_up`].
    pub catch_up: Duration,
}

impl ServerConfig {
    /// The defaults, for this address.
    pub fn new(listen: SocketAddr, settings: Settings, accounts: Accounts) -> ServerConfig {
        ServerConfig {
            listen,
            settings,
            accounts,
            tls: None,
            require_tls: false,
            upstream: None,
            max_connections: 512,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            write_timeout: Duration::from_secs(60),
            catch_up: Duration::from_secs(10),
        }
    }
}

/// A server that listens. Dropping it stops it.
pub struct Server {
    service: Arc<Service>,
    address: SocketAddr,
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What all connections share.
struct Service {
    config: ServerConfig,
    library: Library,
    consumers: Consumers,
    stopping: AtomicBool,
    /// Threads of connections; those that have ended are removed with each new one.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Listens and serves this library.
    ///
    /// # Errors
    /// An error of the system if it cannot listen.
    pub fn start(config: ServerConfig, library: Library) -> io::Result<Server> {
        let listener = Arc::new(TcpListener::bind(config.listen)?);
        let address = listener.local_addr()?;
        let service = Arc::new(Service {
            config,
            library,
            consumers: Consumers::default(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let (of_thread, its_listener) = (service.clone(), listener.clone());
        let thread = std::thread::Builder::new()
            .name("ls-binlog".into())
            .spawn(move || listen(&of_thread, &its_listener))?;
        Ok(Server { service, address, listener, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connections, also for another thread.
    pub fn table(&self) -> Consumers {
        self.service.consumers.clone()
    }

    /// All connections and how far they are.
    pub fn consumers(&self) -> Vec<Consumer> {
        self.service.consumers.list(&self.service.library)
    }

    /// Closes all connections, and waits until their threads have ended.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.service.stopping.store(true, Ordering::Relaxed);
        // On Linux this ends a waiting accept. It fails only for a socket that does not listen.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        // A thread that panicked has ended as well.
        let _ = thread.join();
        self.service.consumers.close_all();
        self.service.library.wake();
        let threads =
            std::mem::take(&mut *self.service.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn listen(service: &Arc<Service>, listener: &TcpListener) {
    while !service.stopping.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, address)) => accept(service, stream, address),
            Err(_) if service.stopping.load(Ordering::Relaxed) => return,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// Starts a connection's thread. A failure closes the connection.
fn accept(service: &Arc<Service>, stream: TcpStream, address: SocketAddr) {
    let mut threads = service.threads.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|thread| !thread.is_finished());
    let Ok(registered) = service.consumers.add(&stream, address, service.config.max_connections) else {
        return;
    };
    let Ok(mut transport) = Transport::new(stream, HANDSHAKE_MAX, service.config.write_timeout) else {
        return;
    };
    let Some(registered) = registered else {
        let refusal = SqlError { code: 1040, state: b"08004", text: "Too many connections".into() };
        // The client learns the reason, or has gone.
        let _ = transport.fail(&refusal);
        return;
    };
    let service = service.clone();
    let thread = std::thread::Builder::new().name("ls-consumer".into()).stack_size(STACK);
    // An error of the connection ends the thread: there is nobody left to tell.
    let thread = thread.spawn(move || {
        if serve(&service, &mut transport, &registered).is_ok() {
            transport.close();
        }
    });
    threads.extend(thread);
}

fn serve(service: &Service, transport: &mut Transport, registered: &Registered) -> io::Result<()> {
    if !sign_in(service, transport, registered)? {
        return Ok(());
    }
    transport.set_limit(COMMAND_MAX);
    let mut session = Session::new(registered.id());
    let mut upstream = Upstream { target: service.config.upstream.as_ref(), client: None };
    loop {
        let payload = match transport.read(service.config.idle_timeout) {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return transport.fail(&SqlError { code: 1156, state: b"08S01", text: error.to_string() });
            }
            Err(error) => return Err(error),
        };
        match Command::parse(&payload) {
            Ok(Command::Quit) => return Ok(()),
            Ok(Command::Ping) => transport.send(&ok())?,
            Ok(Command::Query(sql)) => answer(service, transport, &mut session, &mut upstream, &sql)?,
            Ok(Command::Register(register)) => match check_id(service, &register) {
                Ok(()) => {
                    registered.update(|consumer| consumer.register = Some(register));
                    transport.send(&ok())?;
                }
                Err(error) => transport.fail(&error)?,
            },
            Ok(Command::Dump(dump)) => {
                if dump.server_id != 0 {
                    registered.replace_others(dump.server_id);
                    service.library.wake();
                }
                let options = match session.stream_options(&dump, service.config.settings.semi_sync) {
                    Ok(options) => options,
                    Err(error) => return transport.fail(&error),
                };
                let source = Source {
                    library: &service.library,
                    settings: &service.config.settings,
                    limits: Limits { catch_up: service.config.catch_up },
                    registered,
                };
                // As a MariaDB server does, the connection ends with its stream.
                return dump::run(transport, &source, &options, &dump);
            }
            Ok(Command::Other(_)) => {
                transport.fail(&SqlError { code: 1047, state: b"08S01", text: "Unknown command".into() })?;
            }
            Err(why) => {
                let text = format!("Malformed communication packet: it {why}");
                transport.fail(&SqlError { code: 1835, state: b"HY000", text })?;
            }
        }
    }
}

/// A replica with the stream's own server id would leave out all of its events.
fn check_id(service: &Service, register: &Register) -> Result<(), SqlError> {
    if register.server_id != service.config.settings.server_id {
        return Ok(());
    }
    Err(SqlError::fatal(format!(
        "the replica has server id {0}, and so has this stream: a replica with that id leaves out the stream's events. Set \
         another server_id on the replica",
        register.server_id
    )))
}

/// Whether the client has signed in.
fn sign_in(service: &Service, transport: &mut Transport, registered: &Registered) -> io::Result<bool> {
    let ServerConfig { settings, accounts, tls, require_tls, handshake_timeout, .. } = &service.config;
    let scramble = Scramble::random().ok_or_else(|| io::Error::other("the system gives no random bytes"))?;
    transport.send(&greeting(&settings.version, registered.id() as u32, &scramble, tls.is_some()))?;
    transport.expect_reply();
    let Some(mut payload) = transport.read(*handshake_timeout)? else { return Ok(false) };
    if let Some(tls) = tls.as_ref().filter(|_| is_tls_request(&payload)) {
        transport.start_tls(tls::Session::new(tls)?, *handshake_timeout)?;
        transport.expect_reply();
        let Some(reply) = transport.read(*handshake_timeout)? else { return Ok(false) };
        payload = reply;
        registered.update(|consumer| consumer.encrypted = true);
    }
    let reply = match HandshakeReply::parse(&payload) {
        Ok(reply) => reply,
        Err(why) => {
            let text = format!("Bad handshake: the reply {why}");
            transport.fail(&SqlError { code: 1043, state: b"08S01", text })?;
            return Ok(false);
        }
    };
    let mut proof = reply.proof.clone();
    if reply.needs_switch() {
        transport.send(&switch_request(&scramble))?;
        transport.expect_reply();
        let Some(payload) = transport.read(*handshake_timeout)? else { return Ok(false) };
        proof = payload;
    }
    let accepted = accounts.check(&reply.user, registered.address().ip(), &proof, &scramble);
    let Some(accepted) = accepted else {
        let given = if proof.is_empty() { "NO" } else { "YES" };
        let text = format!("Access denied for user '{}' (using password: {given})", reply.user);
        transport.fail(&SqlError { code: 1045, state: b"28000", text })?;
        return Ok(false);
    };
    if (*require_tls || accepted.needs_tls) && !transport.is_encrypted() {
        let text = format!(
            "Access denied for user '{}': this server or account accepts connections with TLS only (a replica: MASTER_SSL=1)",
            reply.user
        );
        transport.fail(&SqlError { code: 1045, state: b"28000", text })?;
        return Ok(false);
    }
    registered.update(|consumer| consumer.user = reply.user);
    transport.send(&ok())?;
    Ok(true)
}

/// A consumer's connection to the upstream, made for its first statement.
struct Upstream<'a> {
    target: Option<&'a Target>,
    client: Option<SqlClient>,
}

impl Upstream<'_> {
    /// Passes a statement on, and its answer back.
    fn relay(&mut self, target: &Target, sql: &[u8], transport: &mut Transport) -> io::Result<()> {
        // The upstream may have been restarted, or have closed a connection that was idle. Only before the statement is sent:
        // a statement must not be executed twice.
        let client = match self.client.take().filter(SqlClient::is_ready) {
            Some(client) => Ok(client),
            None => SqlClient::connect(target),
        };
        let mut begun = false;
        let relayed = client.and_then(|mut client| {
            client.relay(sql, |payload| {
                begun = true;
                transport.queue(&[payload]).map(drop)
            })?;
            Ok(client)
        });
        match relayed {
            Ok(client) => {
                self.client = Some(client);
                transport.flush()
            }
            // A part of an answer cannot be taken back.
            Err(SqlClientError::Connection(error)) if begun => Err(error),
            Err(error) => {
                let text = format!("the upstream {target:?} does not answer: {error}");
                transport.fail(&SqlError::new(1105, text))
            }
        }
    }
}

fn answer(
    service: &Service,
    transport: &mut Transport,
    session: &mut Session,
    upstream: &mut Upstream<'_>,
    sql: &[u8],
) -> io::Result<()> {
    let sources = Sources {
        settings: &service.config.settings,
        library: &service.library,
        with_tls: service.config.tls.is_some(),
        consumers: &|| service.consumers.list(&service.library),
    };
    match (session.query(sql, &sources), upstream.target) {
        (Err(error), Some(target)) if error.code == NOT_ANSWERED => upstream.relay(target, sql, transport),
        (answer, _) => send_answer(transport, answer),
    }
}

fn send_answer(transport: &mut Transport, answer: Result<Answer, SqlError>) -> io::Result<()> {
    match answer {
        Ok(Answer::Ok) => transport.send(&ok()),
        Ok(Answer::Rows(rows)) => {
            for payload in rows.to_payloads() {
                transport.queue(&[&payload])?;
            }
            transport.flush()
        }
        Err(error) => transport.fail(&error),
    }
}
