//! What a line of source stores to, or locks, in the words of the source: `node->next` for `node->next = head;`.
//!
//! This is no parser: it looks in a line of C, C++ or Rust for the few forms that stores to PM have. If none fits, there is no answer, and
//! the report shows only the offset.

/// Functions that store a word through a pointer, by a part of their name.
const STORING: &[&str] = &["store", "exchange", "xchg", "swap", "fetch_"];
/// Functions that store many bytes.
const COPYING: &[&str] = &["memcpy", "memmove", "memset", "strcpy", "strncpy", "copy", "write", "assign"];
/// A pool handle that comes before the destination.
const HANDLES: &[&str] = &["pop", "pool", "&pop", "&pool"];

/// The destination of the store in a line. If there are several, the one in the statement at `column`, counted from 1; nothing if the
/// column does not decide.
pub(crate) fn stored(line: &str, column: Option<u32>) -> Option<String> {
    let code = without_comments(line);
    let mut places: Vec<(usize, String)> = Vec::new();
    let mut end = 0;
    for statement in code.split_inclusive([';', '{', '}']) {
        end += statement.len();
        let statement = after_keywords(statement.trim_end_matches([';', '{', '}']).trim());
        let place = assigned(statement).map(|text| tidy(text).to_owned()).or_else(|| called(statement));
        places.extend(place.filter(|text| is_place(text)).map(|place| (end, place)));
    }
    let (_, first) = places.first()?;
    if places.iter().all(|(_, place)| place == first) {
        return Some(first.clone());
    }
    let at = column?.checked_sub(1)? as usize;
    places.into_iter().find(|(end, _)| at < *end).map(|(_, place)| place)
}

/// The plain name that a line assigns to: a variable or, in a function of a class, a member.
pub(crate) fn assigned_name(line: &str) -> Option<String> {
    let code = without_comments(line);
    code.split([';', '{', '}']).find_map(|statement| {
        let name = assigned(after_keywords(statement.trim())).map(tidy)?;
        let is_name =
            name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_numeric());
        (is_name && !name.is_empty()).then(|| name.to_owned())
    })
}

/// Whether a line of a function only computes what the function returns: it assigns to nothing but variables that it declares, as in
/// `long mix(long x) { x ^= x >> 33; return x; }`. If such a function is inlined, compilers may give its line the store of the result.
pub(crate) fn only_computes(line: &str) -> bool {
    let code = without_comments(line);
    let statements = || code.split([';', '{', '}']).map(str::trim);
    let declares = |name: &str| {
        let mut places = code.match_indices(name).map(|(at, _)| (&code[..at], &code[at + name.len()..]));
        places.any(|(before, after)| {
            let kind = before.trim_end().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let is_word = before.ends_with(' ') && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            is_word && !kind.is_empty() && !["return", "else", "do"].contains(&kind)
        })
    };
    let stores = |statement: &str| {
        let body = after_keywords(statement);
        let is_own = |place: &str| {
            let place = tidy(place);
            let is_name = place.chars().all(|c| c.is_alphanumeric() || c == '_');
            is_name && declares(place) || !is_name && !is_place(place) && !place.contains(['*', '.', '[', '>'])
        };
        // An assignment within brackets is not looked into.
        let nested =
            body.split('(').skip(1).any(|inside| assigned(inside.split(')').next().unwrap_or_default()).is_some());
        nested || called(body).is_some() || assigned(body).is_some_and(|place| !is_own(place))
    };
    let hides = ["++", "--", "asm", "\""].iter().any(|part| code.contains(part));
    !hides && statements().any(|statement| statement.starts_with("return ")) && !statements().any(stores)
}

/// The macro of libpmemobj that adds such a place to a transaction: `TX_ADD_FIELD(list, head)` for `D_RW(list)->head`. Nothing if the text
/// is not a place that can be added.
pub(crate) fn added(place: &str) -> Option<String> {
    let place = place.trim();
    let object = |text: &str| {
        let inside = ["D_RW", "DIRECT_RW"].iter().find_map(|name| text.trim().strip_prefix(name))?;
        group(inside.trim_start())
            .filter(|(_, rest)| rest.trim().is_empty())
            .map(|(object, _)| object.trim().to_owned())
    };
    if let Some(pointer) = place.strip_prefix('*') {
        let pointer = pointer.trim();
        let whole = pointer.strip_prefix('(').and_then(|_| group(pointer)).filter(|(_, rest)| rest.is_empty());
        let pointer = whole.map_or(pointer, |(inside, _)| inside);
        return Some(
            object(pointer).map_or_else(|| format!("TX_ADD_DIRECT({pointer})"), |oid| format!("TX_ADD({oid})")),
        );
    }
    // The last arrow outside of brackets.
    let mut depth = 0_i32;
    let mut arrow = None;
    for (at, c) in place.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '-' if depth == 0 && place[at..].starts_with("->") => arrow = Some(at),
            _ => {}
        }
    }
    let Some(at) = arrow else {
        // A plain name is a pointer to the destination of a copy.
        let is_name = !place.is_empty() && place.chars().all(|c| c.is_alphanumeric() || c == '_');
        let is_part = place.contains(['.', '[']) && !place.ends_with(')');
        return match (is_name, is_part) {
            (true, _) => Some(format!("TX_ADD_DIRECT({place})")),
            (_, true) => Some(format!("TX_ADD_DIRECT(&{place})")),
            _ => None,
        };
    };
    let (owner, field) = (place[..at].trim(), place[at + 2..].trim());
    Some(match object(owner) {
        Some(oid) => format!("TX_ADD_FIELD({oid}, {field})"),
        None => format!("TX_ADD_FIELD_DIRECT({owner}, {field})"),
    })
}

/// Functions that take a lock, by a part of their name.
const LOCKING: &[&str] = &["lock", "acquire", "test_and_set", "cas", "exchange", "xchg"];

/// The lock that the first such call in a line takes: its first argument, or its object.
pub(crate) fn locked(line: &str) -> Option<String> {
    let code = without_comments(line);
    code.match_indices('(').find_map(|(open, _)| {
        let before = code[..open].trim_end();
        let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let function = name.to_ascii_lowercase();
        // `std::lock_guard<std::mutex> guard(b->mutex)` names the lock, too.
        let guards = before.contains("lock_guard") || before.contains("_lock<") || before.contains("_lock ");
        if !guards && !LOCKING.iter().any(|part| function.contains(part)) || function.contains("unlock") {
            return None;
        }
        let object = before.strip_suffix(name)?;
        let object = object.strip_suffix('.').or_else(|| object.strip_suffix("->"));
        let place = match object {
            Some(object) => receiver(object).to_owned(),
            None => {
                let arguments = split(group(&code[open..])?.0);
                let handled = arguments.first().is_some_and(|first| HANDLES.contains(first));
                let argument = arguments.get(usize::from(handled))?;
                let is_deep =
                    |text: &&str| guards || text.starts_with('&') || text.contains("->") || text.contains('.');
                tidy(Some(*argument).filter(is_deep)?).to_owned()
            }
        };
        Some(place).filter(|text| is_place(text))
    })
}

/// The expression that a text ends in.
fn receiver(text: &str) -> &str {
    let mut depth = 0_i32;
    let start = text.char_indices().rev().find(|&(_, c)| {
        match c {
            ')' | ']' => depth += 1,
            '(' | '[' => depth -= 1,
            _ => {}
        }
        depth < 0 || depth == 0 && !(c.is_alphanumeric() || "_.->[]():".contains(c))
    });
    start.map_or(text, |(at, c)| &text[at + c.len_utf8()..])
}

fn without_comments(line: &str) -> String {
    let mut code = String::new();
    let mut rest = line.split("//").next().unwrap_or_default();
    while let Some((before, after)) = rest.split_once("/*") {
        code += before;
        rest = after.split_once("*/").map_or("", |(_, rest)| rest);
    }
    code + rest
}

/// `if (x) y = 1` stores to `y`.
fn after_keywords(statement: &str) -> &str {
    let mut rest = statement;
    for keyword in ["else", "unsafe", "return", "do"] {
        let after = rest.strip_prefix(keyword).filter(|after| after.starts_with(char::is_whitespace));
        rest = after.map_or(rest, str::trim_start);
    }
    for keyword in ["if", "while", "for"] {
        let after = rest.strip_prefix(keyword).map(str::trim_start).filter(|after| after.starts_with('('));
        if let Some((_, body)) = after.and_then(group) {
            return after_keywords(body.trim_start());
        }
    }
    rest
}

/// The text in the brackets at the start, and the text after them.
fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some((text.get(1..at)?, text.get(at + c.len_utf8()..)?));
        }
    }
    None
}

/// The operand left of `=`, `+=` and the like, or of `++` and `--`.
fn assigned(statement: &str) -> Option<&str> {
    let bytes = statement.as_bytes();
    let mut depth = 0_i32;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'"' => return None,
            b'=' if depth == 0 => {
                let (before, after) = (at.checked_sub(1).map(|i| bytes[i]), bytes.get(at + 1));
                let compares = after == Some(&b'=') || after == Some(&b'>') || matches!(before, Some(b'=' | b'!'));
                let shifts = statement[..at].ends_with("<<") || statement[..at].ends_with(">>");
                if compares || matches!(before, Some(b'<' | b'>')) && !shifts {
                    return None;
                }
                return Some(statement[..at].trim_end_matches(['+', '-', '*', '/', '%', '|', '&', '^', '<', '>']));
            }
            _ => {}
        }
    }
    let counted = |end: &str| {
        let text = statement.strip_suffix(end).or_else(|| statement.strip_prefix(end));
        text.filter(|text| !text.contains(['+', ',']) && (!text.contains('(') || text.contains("->")))
    };
    counted("++").or_else(|| counted("--"))
}

/// The destination of a call such as `memcpy(to, from, size)` or `flag.store(true, Ordering::Release)`.
fn called(statement: &str) -> Option<String> {
    let open = statement.find('(')?;
    let name = statement[..open].trim_end();
    let (inside, _) = group(&statement[open..])?;
    let function = name.rsplit(['.', ':', '>', ' ', '=', '*']).next()?.to_ascii_lowercase();
    if !STORING.iter().chain(COPYING).any(|part| function.contains(part)) {
        return None;
    }
    let is_order = |text: &str| text.contains("Ordering::") || text.contains("memory_order");
    let arguments = split(inside);
    let receiver = name.strip_suffix(&name[name.len() - function.len()..])?;
    if let Some(object) = receiver.strip_suffix('.').or_else(|| receiver.strip_suffix("->")) {
        let atomic = arguments.len() == 1 || arguments.iter().any(|argument| is_order(argument));
        let argument = arguments.first().filter(|first| first.starts_with('&')).copied();
        return atomic.then_some(object).or(argument).map(|text| tidy(text).to_owned());
    }
    let handled = arguments.first().is_some_and(|first| HANDLES.contains(first));
    let to = arguments.get(usize::from(handled))?;
    // An array is shown by its name, a pointer to one word by what it points to.
    let copies = COPYING.iter().any(|part| function.contains(part));
    Some(if copies || to.starts_with('&') { tidy(to).to_owned() } else { format!("*{}", tidy(to)) })
}

/// The arguments of a call.
fn split(inside: &str) -> Vec<&str> {
    let (mut depth, mut from, mut all) = (0_i32, 0, Vec::new());
    for (at, c) in inside.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                all.push(inside[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(inside[from..].trim());
    all
}

/// Without casts, and without the `&` of an argument.
fn tidy(text: &str) -> &str {
    let mut text = text.trim();
    while let Some((cast, rest)) = text.starts_with('(').then(|| group(text)).flatten() {
        if !cast.trim_end().ends_with('*') || rest.trim().is_empty() {
            break;
        }
        text = rest.trim_start();
    }
    for prefix in ["&raw mut ", "&mut ", "&"] {
        text = text.strip_prefix(prefix).map_or(text, str::trim_start);
    }
    text
}

/// Whether the text can name something in PM and can be quoted: a path through pointers, fields and elements. A declaration or a plain
/// local variable cannot, unless it is dereferenced.
fn is_place(text: &str) -> bool {
    let quoted = |c: char| c.is_alphanumeric() || "_.->[]()*+&: ".contains(c);
    let deep =
        text.contains("->") || text.contains(['.', '[', '*']) || text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let words = text.replace("->", ".");
    let declares = words.split(['[', '(']).next().unwrap_or_default().trim().contains(' ');
    !text.is_empty()
        && text.len() <= 60
        && text.chars().all(quoted)
        && text.starts_with(|c: char| c.is_alphabetic() || "_*(".contains(c))
        && deep
        && !declares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{added, assigned_name, locked, only_computes, stored};

    #[test]
    fn places_are_added_to_transactions() {
        let cases = [
            ("D_RW(r)->count", "TX_ADD_FIELD(r, count)"),
            ("D_RW(D_RO(r)->head)->next", "TX_ADD_FIELD(D_RO(r)->head, next)"),
            ("D_RW(t)->slots[h(k) % N].key", "TX_ADD_FIELD(t, slots[h(k) % N].key)"),
            ("*D_RW(node)", "TX_ADD(node)"),
            ("q->tail", "TX_ADD_FIELD_DIRECT(q, tail)"),
            ("q->tail->next", "TX_ADD_FIELD_DIRECT(q->tail, next)"),
            ("(*node).next", "TX_ADD_DIRECT(&(*node).next)"),
            ("*link", "TX_ADD_DIRECT(link)"),
            ("slots[i]", "TX_ADD_DIRECT(&slots[i])"),
            ("name", "TX_ADD_DIRECT(name)"),
        ];
        for (place, expected) in cases {
            assert_eq!(added(place).as_deref(), Some(expected), "{place}");
        }
        for place in ["", "f(x)", "D_RW(r", "->"] {
            let _ = added(place);
        }
        assert_eq!(assigned_name("\tcount_ += 1; // one more").as_deref(), Some("count_"));
        assert_eq!(assigned_name("length++;").as_deref(), Some("length"));
        assert_eq!(assigned_name("uint64_t n = 1;"), None);
    }

    #[test]
    fn destinations_are_recognised() {
        let cases = [
            ("\tn->next = next;", "n->next"),
            ("\t\troot->count += 1; /* why */", "root->count"),
            ("h->slots[i].key = key;", "h->slots[i].key"),
            ("*link = off;", "*link"),
            ("zoo_store(&root->applied, txid);", "root->applied"),
            ("zoo_copy(s->data, (char *)pool + off, len);", "s->data"),
            ("zoo_store(link, next);", "*link"),
            ("memset(n, 0, sizeof *n);", "n"),
            ("memcpy((char *)rec->body, body, len); // copy", "rec->body"),
            ("pmemobj_memcpy_persist(pop, &rootp->len, &len, sizeof len);", "rootp->len"),
            ("if (BUG != 4) root->dirty = 1;", "root->dirty"),
            ("else if (a == b) x->y |= FLAG;", "x->y"),
            ("D_RW(node)->value = 5;", "D_RW(node)->value"),
            ("root->count++;", "root->count"),
            ("D_RW(root)->count++; /* why */", "D_RW(root)->count"),
            ("__atomic_store_n(&q->head, h, __ATOMIC_RELEASE);", "q->head"),
            ("q->head.store(h, std::memory_order_release);", "q->head"),
            ("self.root.count.store(n, Ordering::Release);", "self.root.count"),
            ("unsafe { (*node).next = head; }", "(*node).next"),
            ("unsafe { ptr::write(slot.key, key) };", "slot.key"),
            ("self.log[i] = entry;", "self.log[i]"),
        ];
        for (line, expected) in cases {
            assert_eq!(stored(line, None).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn the_column_tells_which_of_several() {
        let line = "if (n) return; e->key = k; e->value = v; e->used = 1;";
        for (column, expected) in [(22, "e->key"), (37, "e->value"), (50, "e->used")] {
            assert_eq!(stored(line, Some(column)).as_deref(), Some(expected), "{column}");
        }
        assert_eq!(stored(line, None), None);
        assert_eq!(stored(line, Some(200)), None);
        assert_eq!(stored("if (a) p->n = 1; else p->n = 2;", None).as_deref(), Some("p->n"));
    }

    #[test]
    fn other_lines_are_not_guessed_at() {
        let lines = [
            "struct node *n = alloc(pool);",
            "let x = node.next;",
            "if (a->b == c)",
            "return x ^ (x >> 31);",
            "pool.store(at + n * LINE, word);",
            "printf(\"a = %d\\n\", a->b);",
            "}",
            "",
            "zoo_flush(&root->cell[i], sizeof(struct cell));",
            "x <= y->z;",
        ];
        for line in lines {
            assert_eq!(stored(line, None), None, "{line}");
        }
    }

    #[test]
    fn lines_that_only_compute_are_recognised() {
        for line in [
            "static uint64_t mix(uint64_t x) { x ^= x >> 33; x *= 0xff51ul; return x; }",
            "\treturn crc(&r->key, 8 + r->len) ^ r->len * 2654435761u;",
            "uint32_t sum(const rec *r) { uint32_t h = 7; h += r->len; return h; }",
            "    return a == b ? a : b->key <= 4; // r->len = 3",
        ] {
            assert!(only_computes(line), "{line}");
        }
        for line in [
            "",
            "}",
            "x ^= x >> 33;",
            "return x = y;",
            "return count += 2;",
            "uint64_t next(gen *g) { g->state = g->state * 5; return g->state; }",
            "uint64_t next(gen *g) { return g->state++; }",
            "long swap(long *p, long v) { long old = *p; *p = v; return old; }",
            "long put(long &to, long v) { to = v; return v; }",
            "return memcpy(to, from, n);",
            "return __atomic_exchange_n(&p->lock, 1, 5);",
            "return (a[i] = b);",
        ] {
            assert!(!only_computes(line), "{line}");
        }
    }

    #[test]
    fn locks_are_recognised() {
        let cases = [
            ("\tpthread_mutex_lock(&b->lock);", "b->lock"),
            ("if (pthread_mutex_trylock(&t->stripes[i].m) != 0)", "t->stripes[i].m"),
            ("while (__sync_lock_test_and_set(&b->word, 1)) pause();", "b->word"),
            ("while (!__atomic_compare_exchange_n(&h->lock, &free, 1, 0, 5, 5))", "h->lock"),
            ("pmemobj_mutex_lock(pop, &D_RW(root)->lock);", "D_RW(root)->lock"),
            ("std::lock_guard<std::mutex> guard(table->mutex);", "table->mutex"),
            ("std::unique_lock guard(mutex_);", "mutex_"),
            ("let guard = self.locks[i].lock().unwrap();", "self.locks[i]"),
            ("if (b->mutex.try_lock()) {", "b->mutex"),
            ("spin_acquire((uint64_t *)&seg->sema);", "seg->sema"),
        ];
        for (line, expected) in cases {
            assert_eq!(locked(line).as_deref(), Some(expected), "{line}");
        }
        for line in ["pthread_mutex_unlock(&b->lock);", "lock(l);", "b->lock = 0;", "", "lock_all();", "x = f(y);"] {
            assert_eq!(locked(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in "([a-z(){}\\[\\]=+*&;./<>\"é -]|lock){0,60}") {
            let _ = (stored(&line, Some(7)), locked(&line), only_computes(&line));
        }
    }
}
