//! Writes values that JSON cannot hold. A path that is not UTF-8 loses its invalid bytes, which is better than losing the finding.

use std::path::{Path, PathBuf};

use serde::Serializer;

pub(crate) fn path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

pub(crate) fn optional_path<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => to.collect_str(&path.display()),
        None => to.serialize_none(),
    }
}

/// JSON cannot write infinity or NaN.
pub(crate) fn finite<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(if value.is_finite() { *value } else { 0.0 })
}
