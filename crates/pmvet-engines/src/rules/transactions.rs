//! Rules that the transactions of a run break, as raw findings.

use pmvet_events::{ContextId, SiteId};
use pmvet_findings::{Role, Rule, rules};

use super::raw::{Key, RawFinding, RawPlace};
use super::watch::RuleWatcher;
use crate::transactions::{EscapedStore, NeedlessAdd, NeedlessPersist, TransactionFacts, TxPlace};

impl RuleWatcher {
    /// Adds them to the findings.
    pub(super) fn transactions_found(&mut self, facts: &TransactionFacts) {
        for store in facts.escaped.iter().filter(|store| !store.persisted) {
            self.escaped(store);
        }
        for NeedlessAdd { place, before, allocated, count } in &facts.adds {
            let other = Some(raw_place(Role::Log, before));
            let found = self.transaction_found(rules::TX_ADD_TWICE, raw_place(Role::Log, place), other, *count);
            found.allocated = *allocated;
        }
        for NeedlessPersist { place, added, count } in &facts.persists {
            let other = added.as_ref().map(|added| raw_place(Role::Log, added));
            self.transaction_found(rules::TX_PERSIST, raw_place(Role::Flush, place), other, *count);
        }
        for finding in self.findings_mut() {
            finding.has_transactions = facts.has_transactions;
            finding.in_pool = finding.place.pm.is_some_and(|pm| facts.pools.contains(&pm.file));
        }
    }

    /// A store that escapes and is also never flushed gives one finding, not two.
    fn escaped(&mut self, store: &EscapedStore) {
        let of_store = |f: &RawFinding| {
            let about_loss = [rules::UNPERSISTED_STORE.id, rules::TRANSIENT_DATA.id].contains(&f.rule.id);
            about_loss && (f.place.site, f.place.context) == (store.place.site, store.place.context)
        };
        let lost = self.findings_mut().iter_mut().filter(|f| of_store(f)).flat_map(|f| std::mem::take(&mut f.lost));
        let lost = lost.collect();
        let found =
            self.transaction_found(rules::TX_STORE_NOT_ADDED, raw_place(Role::Store, &store.place), None, store.count);
        found.escape = Some(store.escape);
        found.lost = lost;
    }

    fn transaction_found(
        &mut self,
        rule: &'static Rule,
        place: RawPlace,
        other: Option<RawPlace>,
        count: u64,
    ) -> &mut RawFinding {
        let none = (SiteId(0), ContextId(0));
        let key = Key { rule: rule.id, site: place.site, context: place.context, other: none };
        let found = self.found(key, rule, place, other);
        found.count += count.saturating_sub(1);
        found
    }
}

fn raw_place(role: Role, place: &TxPlace) -> RawPlace {
    let TxPlace { seq, thread, site, context, pm } = *place;
    RawPlace { role, site, context, thread, seq, pm }
}
