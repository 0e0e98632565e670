//! Patterns as users write them in suppressions: `*` stands for any text, `?` for one character.
//!
//! Brackets match themselves, since C++ and Rust names are full of them.

/// Whether the whole text matches. Takes time proportional to the product of the lengths at worst.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to resume if the last star has to match one more character.
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star, from)) = retry else { return false };
                retry = Some((star, from + 1));
                p = star + 1;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Whether the pattern matches the path or what follows one of its slashes.
pub(crate) fn matches_path(pattern: &str, path: &str) -> bool {
    matches(pattern, path) || path.match_indices('/').any(|(at, _)| matches(pattern, &path[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        assert!(matches("*", ""));
        assert!(matches("a*c", "abcbc"));
        assert!(matches("a?c", "aßc"));
        assert!(matches("Vec<[u8]>::push", "Vec<[u8]>::push"));
        assert!(!matches("a*c", "ab"));
        assert!(!matches("", "a"));
        assert!(!matches("a", ""));
    }

    #[test]
    fn paths_match_from_any_folder_on() {
        assert!(matches_path("list.c", "/home/me/src/list.c"));
        assert!(matches_path("src/*.c", "/home/me/src/list.c"));
        assert!(!matches_path("ist.c", "/home/me/src/list.c"));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        assert!(!matches(&"a*".repeat(200), &format!("{}b", "a".repeat(2000)).replace('b', "c").replace('a', "b")));
        assert!(!matches(&format!("{}x", "*a".repeat(100)), &"a".repeat(5000)));
    }
}
