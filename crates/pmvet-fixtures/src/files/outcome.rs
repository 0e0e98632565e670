//! What came of a run: how pmvet ended, and what the operations said themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::process::Output;

use super::{Backend, Engine, FileCase, operations};

/// What operations say themselves, by datagrams: pmvet shows neither the output nor the status of every run.
pub(super) struct Reports {
    socket: UdpSocket,
    reader: std::thread::JoinHandle<Vec<String>>,
}

impl Reports {
    pub(super) fn new() -> Self {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let from = socket.try_clone().unwrap();
        let reader = std::thread::spawn(move || {
            let (mut bytes, mut all) = (vec![0; 1 << 16], Vec::new());
            // An empty one is the last.
            while let Ok(length @ 1..) = from.recv(&mut bytes) {
                all.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            }
            all
        });
        Self { socket, reader }
    }

    pub(super) fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    pub(super) fn end(self) -> Vec<String> {
        self.socket.send_to(&[], self.socket.local_addr().unwrap()).unwrap();
        self.reader.join().unwrap()
    }
}

/// How pmvet ended, and what the operations said.
#[derive(Debug)]
pub struct FileOutcome {
    /// pmvet's exit code; nothing if a signal ended it.
    pub code: Option<i32>,
    /// All of pmvet's standard output.
    pub stdout: String,
    /// All of pmvet's standard error.
    pub stderr: String,
    /// How often the operations were done at all.
    pub reports: usize,
    /// Operations that did what they do natively.
    pub done: BTreeSet<String>,
    /// With the reason.
    pub refused: BTreeMap<String, String>,
    /// Operations that neither happened nor were refused as they should be, with the reason.
    pub missing: BTreeMap<String, String>,
}

impl FileOutcome {
    pub(super) fn new(output: Output, reports: Vec<String>) -> Self {
        let mut outcome = Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            reports: reports.len(),
            done: BTreeSet::new(),
            refused: BTreeMap::new(),
            missing: BTreeMap::new(),
        };
        for line in reports.iter().flat_map(|report| report.lines()) {
            let mut words = line.splitn(3, ' ');
            let (kind, name) = (words.next().unwrap_or(""), words.next().unwrap_or("").to_owned());
            let reason = words.next().unwrap_or("").to_owned();
            match kind {
                "done" => drop(outcome.done.insert(name)),
                "refused" => drop(outcome.refused.insert(name, reason)),
                _ => drop(outcome.missing.insert(name, reason)),
            }
        }
        outcome
    }

    /// Everything had its effect, or was refused where that is allowed, and pmvet has nothing to object to.
    pub(super) fn judge(&self, case: &FileCase) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut say = |operation: &str, what: String| {
            wrong.push(format!("{}: {what}", FileCase { operation: operation.into(), ..case.clone() }));
        };
        for (name, reason) in &self.missing {
            say(name, format!("had no effect: {reason}"));
        }
        for (name, reason) in &self.refused {
            let known = &operations()[name];
            if case.backend == Backend::Namespace && !known.optional {
                say(name, format!("was refused: {reason}"));
            } else if case.backend == Backend::Supervisor
                // The checks that `fuzz` starts say nothing themselves.
                && case.engine != Engine::Fuzz
                && !known.optional
                && !known.calls.iter().any(|c| self.names(c))
            {
                say(name, format!("was refused ({reason}), but pmvet names none of {}", known.calls.join(", ")));
            }
        }
        if wrong.is_empty() && self.reports == 0 && case.operation != "none" {
            wrong.push(format!("{case}: was never done\n{}{}", self.stdout, self.stderr));
        }
        if wrong.is_empty() && self.code != Some(0) {
            wrong.push(format!("{case}: pmvet ends with {:?}\n{}{}", self.code, self.stdout, self.stderr));
        }
        wrong
    }

    /// Whether a message of pmvet has this system call in it.
    pub fn names(&self, call: &str) -> bool {
        self.lines_with(call) > 0
    }

    /// How many lines of pmvet's messages name this system call.
    pub fn lines_with(&self, call: &str) -> usize {
        let named = format!("`{call}`");
        self.stderr.lines().filter(|line| line.contains(&named)).count()
    }
}
