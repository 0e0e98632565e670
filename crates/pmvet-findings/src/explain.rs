//! A page for every rule, as `pmvet explain` prints it.

use crate::rules::Rule;

macro_rules! pages {
    ($($id:literal)*) => {
        &[$(($id, include_str!(concat!("explain/", $id, ".md")))),*]
    };
}

const PAGES: &[(&str, &str)] = pages! {
    "recovery-failure"
    "reordered-crash"
    "durable-lost"
    "durable-torn"
    "durable-resurrected"
    "durable-duplicated"
    "durable-wrong-value"
    "unpersisted-store"
    "tx-store-not-added"
    "dirty-overwrite"
    "transient-data"
    "flush-clean"
    "flush-volatile"
    "flush-nontemporal"
    "flush-covers-stores"
    "redundant-fence"
    "tx-add-twice"
    "tx-persist"
    "fence-orders-lines"
    "persistency-race"
    "lock-in-pm"
    "reachable-failure"
    "failing-case"
};

/// The page of the rule with this id, in Markdown.
pub fn page(id: &str) -> Option<&'static str> {
    PAGES.iter().find(|(rule, _)| *rule == id).map(|(_, page)| *page)
}

impl Rule {
    /// The meaning of the rule, an example, why it matters, the fix, and what pmvet cannot know.
    pub fn explanation(&self) -> &'static str {
        page(self.id).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    #[test]
    fn every_rule_has_a_page_with_all_sections() {
        for rule in rules::ALL {
            let page = rule.explanation();
            assert!(page.starts_with(&format!("# {}\n", rule.id)), "{}", rule.id);
            for section in ["## Example", "```c", "## Why it matters", "## Fix", "## What pmvet cannot know"] {
                assert!(page.contains(section), "{}: no {section}", rule.id);
            }
            assert!(page.lines().all(|line| line.chars().count() <= 100), "{}: long line", rule.id);
        }
        assert_eq!(PAGES.len(), rules::ALL.len());
    }
}
