//! `pmvet events`: prints the events of a saved trace.

use std::io::{self, BufWriter, Write};
use std::time::SystemTime;

use pmvet_events::What;
use pmvet_events::file::{TraceError, TraceReader};

use crate::cli::{EventFormat, Events};
use crate::exit::{Error, Exit};
use crate::printing::filter::Filter;
use crate::printing::{Printer, SeenSoFar, json, text};

pub(crate) fn run(arguments: &Events) -> Result<Exit, Error> {
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    print(arguments, out)
}

fn print(arguments: &Events, mut out: impl Write) -> Result<Exit, Error> {
    let path = &arguments.file;
    let failed = |source: TraceError| Error::Trace { path: path.clone(), source };
    let mut reader = TraceReader::open(path).map_err(failed)?;
    // Programs rebuilt since then would give wrong lines.
    let recorded = path.metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
    let mut seen = SeenSoFar::new(recorded);
    let filter = Filter::new(arguments);
    let mut printer: Box<dyn Printer> = match arguments.format {
        EventFormat::Text => Box::new(text::Text::new(arguments.stacks)),
        EventFormat::Json => Box::new(json::JsonLines::new(arguments.stacks)),
    };
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    let mut line = Vec::new();
    let result = loop {
        if left == 0 {
            break Ok(());
        }
        let (event, places) = match reader.next_in_place() {
            Ok(Some(next)) => next,
            Ok(None) => break Ok(()),
            Err(e) => break Err(failed(e)),
        };
        // The file of an unmapping or a deletion is only known before it takes effect.
        let before = matches!(event.what, What::Unmap { .. });
        if !before {
            seen.update(&event);
        }
        let place = seen.place(&event);
        if filter.accepts(&event, place, &seen) {
            line.clear();
            printer.print(&mut line, &event, place, &mut seen, places);
            left -= 1;
            match out.write_all(&line) {
                Ok(()) => {}
                // The reader has closed the pipe.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Ok),
                Err(source) => return Err(Error::Output { action: "write", what: "standard output".into(), source }),
            }
        }
        if before {
            seen.update(&event);
        }
    };
    match out.flush() {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Ok),
        Err(source) => return Err(Error::Output { action: "write", what: "standard output".into(), source }),
        Ok(()) => {}
    }
    if let Some(end) = reader.end().filter(|end| !end.complete) {
        eprintln!("pmvet: the recording was stopped before the target ended or is incomplete ({})", end.exit);
    }
    result.map(|()| Exit::Ok)
}
