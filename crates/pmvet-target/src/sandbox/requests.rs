//! pmvet as the client of a server: it sends requests that an earlier run has recorded, in their order, and waits for each reply.
//!
//! It runs as a separate process in the server's sandbox, where the server's sockets are.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sparse;

/// The argument that makes pmvet the client.
pub const COMMAND: &str = "__send-requests";

/// Exit status if the server cannot be reached.
pub const NOT_CONNECTED: i32 = 3;
/// Exit status if the server closes a connection before it replies.
pub const CLOSED: i32 = 4;
/// Exit status if the server does not reply in time.
pub const NO_REPLY: i32 = 5;

/// How long a server may take to listen once it is ready, to reply, and to close a connection that its client has closed.
const LISTENS: Duration = Duration::from_secs(5);
const REPLIES: Duration = Duration::from_secs(60);
const CLOSES: Duration = Duration::from_secs(1);
/// Interval between attempts to connect.
const ROUND: Duration = Duration::from_millis(5);

/// What a client has asked of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Connections are numbered in the order of their first request.
    pub connection: u32,
    /// Where the server accepted it: an address with its port, the path of a socket, or `@` and a name.
    pub address: String,
    /// The server sent something before the first request.
    pub greeted: bool,
    /// Requests of one connection with the same number were sent before there was a reply to any.
    pub turn: u32,
    /// There was a reply.
    pub answered: bool,
    /// What was sent.
    pub bytes: Vec<u8>,
}

/// The client's command line.
pub fn command() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), COMMAND.into()]
}

/// The client's input.
pub fn input<'a>(requests: impl Iterator<Item = &'a Request>) -> io::Result<File> {
    let mut file = sparse::unnamed(Path::new("requests"))?;
    let mut text = Vec::new();
    for request in requests {
        serde_json::to_writer(&mut text, request)?;
        text.push(b'\n');
    }
    file.write_all(&text)?;
    Ok(file)
}

/// The client: sends the requests on its standard input.
pub fn send() -> u8 {
    let lines = io::stdin().lock().lines();
    let requests: io::Result<Vec<Request>> =
        lines.map(|line| serde_json::from_str(&line?).map_err(io::Error::from)).collect();
    let sent = requests.map_err(|_| NOT_CONNECTED).and_then(|requests| send_all(&requests));
    sent.map_or_else(|status| status as u8, |()| 0)
}

fn send_all(requests: &[Request]) -> Result<(), i32> {
    let last: HashMap<u32, usize> = requests.iter().enumerate().map(|(i, request)| (request.connection, i)).collect();
    let mut open: HashMap<u32, Connection> = HashMap::new();
    let together = |a: &Request, b: &Request| (a.connection, a.turn) == (b.connection, b.turn);
    let mut at = 0;
    for turn in requests.chunk_by(together) {
        at += turn.len();
        let first = &turn[0];
        let mut connection = match open.remove(&first.connection) {
            Some(connection) => connection,
            None => Connection::open(first)?,
        };
        let bytes: Vec<u8> = turn.iter().flat_map(|request| request.bytes.iter().copied()).collect();
        connection.ask(&bytes)?;
        if first.answered {
            connection.reply()?;
        }
        // A server that serves one client at a time waits for this.
        if last.get(&first.connection) == Some(&(at - 1)) {
            connection.close();
        } else {
            open.insert(first.connection, connection);
        }
    }
    Ok(())
}

/// A connection of either kind.
enum Connection {
    Network(TcpStream),
    Local(UnixStream),
}

impl Connection {
    fn open(request: &Request) -> Result<Self, i32> {
        let since = Instant::now();
        loop {
            let refused = match Self::connect(&request.address) {
                Ok(mut connection) => {
                    connection.wait_at_most(REPLIES).map_err(|_| NOT_CONNECTED)?;
                    if request.greeted {
                        connection.reply()?;
                    }
                    return Ok(connection);
                }
                Err(error) => matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound),
            };
            if !refused || since.elapsed() > LISTENS {
                return Err(NOT_CONNECTED);
            }
            // It is about to listen.
            std::thread::sleep(ROUND);
        }
    }

    fn connect(address: &str) -> io::Result<Self> {
        if let Some(name) = address.strip_prefix('@') {
            let name = SocketAddr::from_abstract_name(name)?;
            return UnixStream::connect_addr(&name).map(Connection::Local);
        }
        match address.parse::<std::net::SocketAddr>() {
            Ok(address) => TcpStream::connect(address).map(Connection::Network),
            Err(_) => UnixStream::connect(address).map(Connection::Local),
        }
    }

    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        match self {
            Connection::Network(stream) => stream.set_read_timeout(Some(time)),
            Connection::Local(stream) => stream.set_read_timeout(Some(time)),
        }
    }

    fn wait(&self, waits: bool) -> io::Result<()> {
        match self {
            Connection::Network(stream) => stream.set_nonblocking(!waits),
            Connection::Local(stream) => stream.set_nonblocking(!waits),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Network(stream) => stream.read(buffer),
            Connection::Local(stream) => stream.read(buffer),
        }
    }

    fn ask(&mut self, bytes: &[u8]) -> Result<(), i32> {
        let sent = match self {
            Connection::Network(stream) => stream.write_all(bytes),
            Connection::Local(stream) => stream.write_all(bytes),
        };
        sent.map_err(|_| CLOSED)
    }

    /// Waits for a reply: some of it, and then whatever is there.
    fn reply(&mut self) -> Result<(), i32> {
        let mut buffer = [0; 1 << 12];
        match self.read(&mut buffer) {
            Ok(1..) => {}
            Ok(0) => return Err(CLOSED),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(NO_REPLY);
            }
            Err(_) => return Err(CLOSED),
        }
        self.wait(false).map_err(|_| CLOSED)?;
        while let Ok(1..) = self.read(&mut buffer) {}
        self.wait(true).map_err(|_| CLOSED)
    }

    /// Signals the end of the requests, and waits until the server has noticed: by then it has done what it was asked.
    fn close(mut self) {
        let shut = match &self {
            Connection::Network(stream) => stream.shutdown(Shutdown::Write),
            Connection::Local(stream) => stream.shutdown(Shutdown::Write),
        };
        if shut.and_then(|()| self.wait_at_most(CLOSES)).is_ok() {
            let mut buffer = [0; 1 << 12];
            while let Ok(1..) = self.read(&mut buffer) {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::io::BufReader;
    use std::net::TcpListener;

    use super::*;

    fn request(connection: u32, address: &str, turn: u32, text: &str) -> Request {
        Request { connection, address: address.into(), greeted: false, turn, answered: true, bytes: text.into() }
    }

    /// Serves one connection after the other, and returns the lines that it read.
    fn serve(listener: &TcpListener, connections: usize) -> Vec<String> {
        let mut seen = Vec::new();
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for line in lines.map_while(Result::ok) {
                stream.write_all(b"first\nsecond\n").unwrap();
                seen.push(line);
            }
        }
        seen
    }

    #[test]
    fn requests_come_in_their_order_one_connection_after_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = [
            request(0, &address, 0, "put a 1\n"),
            request(0, &address, 1, "put b 2\n"),
            request(0, &address, 1, "put c 3\n"),
            request(1, &address, 0, "del a\n"),
        ];
        let server = std::thread::spawn(move || serve(&listener, 2));
        assert_eq!(send_all(&requests), Ok(()));
        assert_eq!(server.join().unwrap(), ["put a 1", "put b 2", "put c 3", "del a"]);
    }

    #[test]
    fn a_server_that_closes_has_not_replied() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || drop(listener.accept()));
        assert_eq!(send_all(&[request(0, &address, 0, "put a 1\n")]), Err(CLOSED));
        server.join().unwrap();
    }

    #[test]
    fn requests_survive_the_way_to_the_client() {
        let one = Request { bytes: b"\xff\n".to_vec(), ..request(3, "@name", 7, "") };
        let file = input([&one].into_iter()).unwrap();
        let mut text = vec![0; file.metadata().unwrap().len() as usize];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut text, 0).unwrap();
        assert_eq!(serde_json::from_slice::<Request>(&text).unwrap(), one);
    }
}
