//! What has been tried, kept on disk line by line, so that an interrupted run can go on.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use pmvet_findings::Outcome;
use serde::{Deserialize, Serialize};

use super::trial::Trial;
use pmvet_target::sandbox::RawFrame;

/// A trial that was made, under the hash of its image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    pub image: String,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<RawFrame>,
    pub seconds: f64,
}

impl Tried {
    /// What a good recovery printed is of no use to anybody.
    pub fn new(image: String, trial: Trial, good: bool) -> Self {
        let output = if good { String::new() } else { String::from_utf8_lossy(&trial.output).into_owned() };
        Self { image, outcome: trial.outcome, output, stack: trial.stack, seconds: trial.time.as_secs_f64() }
    }
}

#[derive(Debug)]
pub struct Journal {
    file: File,
    tried: HashMap<String, Tried>,
}

impl Journal {
    /// Opens or makes it. A last line that was not written to its end, as `kill -9` leaves it, does not count.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut tried = HashMap::new();
        let mut whole = 0;
        if let Ok(file) = File::open(path) {
            let mut reader = BufReader::new(file);
            let mut line = String::new();
            while let Ok(1..) = reader.read_line(&mut line)
                && let Some(text) = line.strip_suffix('\n')
                && let Ok(entry) = serde_json::from_str::<Tried>(text)
            {
                whole += line.len() as u64;
                tried.insert(entry.image.clone(), entry);
                line.clear();
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole)?;
        Ok(Self { file, tried })
    }

    pub fn get(&self, image: &str) -> Option<&Tried> {
        self.tried.get(image)
    }

    pub fn add(&mut self, tried: Tried) -> io::Result<()> {
        let mut line = serde_json::to_vec(&tried).map_err(io::Error::other)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.tried.insert(tried.image.clone(), tried);
        Ok(())
    }

    /// All trials, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Tried> {
        self.tried.values()
    }
}
