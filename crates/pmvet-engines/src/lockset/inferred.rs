//! Inferred locks as reports list them: what they are, and the evidence.

use pmvet_events::SiteId;

use super::spin::{KnownLocks, Lock, PmWord, Word};

/// What kind of lock an inferred lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockShape {
    /// Released to the same free value that it was taken from.
    Plain,
    /// Released to a new value each time, as in optimistic lock coupling.
    Version,
    /// Readers count up and down; a writer takes it from its free value.
    ReaderWriter,
    /// Incremented to draw a ticket; its neighbour says whose turn it is.
    Ticket,
}

impl LockShape {
    /// What reports call it.
    pub fn name(self) -> &'static str {
        match self {
            LockShape::Plain => "spin lock",
            LockShape::Version => "version lock",
            LockShape::ReaderWriter => "reader-writer spin lock",
            LockShape::Ticket => "ticket lock",
        }
    }
}

/// Words that one instruction takes and that were found to be locks, with the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferredLock {
    /// The instruction that takes them.
    pub site: SiteId,
    /// What kind of lock they are.
    pub shape: LockShape,
    /// How many words this instruction takes.
    pub words: u64,
    /// The word that most threads took, if it is in PM.
    pub example: Option<PmWord>,
    /// How often they were taken, summed over all words.
    pub acquired: u64,
    /// How often their holders released them.
    pub returned: u64,
    /// Successful writes by others while the lock was held, as waiters make.
    pub disturbed: u64,
    /// Threads that took the example.
    pub threads: usize,
    /// The user has declared the lock: see `LocksetOptions::declare`.
    pub declared: bool,
}

impl KnownLocks {
    /// Every inferred lock, by the instructions that take it.
    pub(crate) fn inferred(&self) -> Vec<InferredLock> {
        let mut found: Vec<InferredLock> = Vec::new();
        for (id, lock) in self.all().filter(|(_, l)| !l.named) {
            if !self.verdict(id).0 {
                continue;
            }
            for &site in &lock.word.sites {
                let this = lock.evidence(site, self.declared.contains(&site));
                match found.iter_mut().find(|f| f.site == site && f.shape == this.shape) {
                    Some(f) => {
                        f.words += 1;
                        f.acquired += this.acquired;
                        f.returned += this.returned;
                        f.disturbed += this.disturbed;
                        if this.threads > f.threads {
                            (f.threads, f.example) = (this.threads, this.example);
                        }
                    }
                    None => found.push(this),
                }
            }
        }
        found.sort_by_key(|f| (f.site, f.shape));
        found
    }
}

impl Lock {
    fn evidence(&self, site: SiteId, declared: bool) -> InferredLock {
        let word = &self.word;
        InferredLock {
            site,
            shape: word.shape(),
            words: 1,
            example: self.place,
            acquired: word.acquired,
            returned: word.returned + word.moved_on,
            disturbed: word.disturbed,
            threads: word.threads.len(),
            declared,
        }
    }
}

impl Word {
    pub(crate) fn shape(&self) -> LockShape {
        if self.serving.is_some() {
            LockShape::Ticket
        } else if self.counts {
            LockShape::ReaderWriter
        } else if self.returned == 0 && self.moved_on > 0 {
            LockShape::Version
        } else {
            LockShape::Plain
        }
    }
}
