//! What counts as PM: globs of paths.

use std::path::Path;

use glob::Pattern;

/// PM without being told.
pub(crate) const DEFAULT: [&str; 3] = ["/mnt/pmem*/**", "/dev/shm/**", "/dev/dax*"];

/// An absolute glob for what the user wrote; `base` is what a relative one is relative to.
pub(crate) fn glob(text: &str, base: &Path) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty glob matches nothing".into());
    }
    let path = Path::new(text);
    let folder = base.to_str().ok_or_else(|| format!("the folder {} is not UTF-8", base.display()))?;
    let absolute = match path.strip_prefix(".").unwrap_or(path) {
        rest if path.is_absolute() => rest.to_string_lossy().into_owned(),
        rest => format!("{}/{}", Pattern::escape(folder.trim_end_matches('/')), rest.to_string_lossy()),
    };
    // A folder stands for all that is in it, even if its name looks like a glob.
    let there = base.join(path);
    if there.is_dir() {
        // The target's mappings are known by their real paths.
        let real = there.canonicalize().unwrap_or(there);
        let real = real.to_str().ok_or_else(|| format!("the folder {} is not UTF-8", real.display()))?;
        return Ok(format!("{}/**", Pattern::escape(real.trim_end_matches('/'))));
    }
    if there.is_file() {
        let real = there.canonicalize().unwrap_or(there);
        return match real.to_str() {
            Some(real) => Ok(Pattern::escape(real)),
            None => Err(format!("the path {} is not UTF-8", real.display())),
        };
    }
    match Pattern::new(&absolute) {
        Ok(_) => Ok(absolute),
        Err(e) => Err(format!(
            "bad glob `{text}`: {} at character {}",
            e.msg,
            e.pos.saturating_sub(absolute.len() - text.len())
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_globs_become_absolute() {
        let base = Path::new("/no/such [folder]");
        assert_eq!(glob("*.pool", base).unwrap(), "/no/such [[]folder[]]/*.pool");
        assert_eq!(glob("./a/*", base).unwrap(), "/no/such [[]folder[]]/a/*");
        assert_eq!(glob("/x/**", base).unwrap(), "/x/**");
    }

    #[test]
    fn folders_and_files_stand_for_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("a[b]")).unwrap();
        std::fs::write(real.join("p*"), "").unwrap();
        let folder = Pattern::new(&glob("a[b]", &real).unwrap()).unwrap();
        assert!(folder.matches(real.join("a[b]/x/y").to_str().unwrap()));
        assert!(!folder.matches(real.join("ab/x").to_str().unwrap()));
        let file = Pattern::new(&glob("p*", &real).unwrap()).unwrap();
        assert!(file.matches(real.join("p*").to_str().unwrap()) && !file.matches(real.join("pool").to_str().unwrap()));
    }

    #[test]
    fn bad_globs_say_where() {
        let error = glob("/a/[b", Path::new("/")).unwrap_err();
        assert!(error.contains("/a/[b") && error.contains("character 3"), "{error}");
        assert!(glob("a***", Path::new("/")).is_err());
        assert!(glob("", Path::new("/")).is_err());
    }

    #[test]
    fn the_default_is_valid() {
        for text in DEFAULT {
            assert!(glob(text, Path::new("/")).is_ok());
        }
    }
}
