//! The broker's state, without sockets: names, producers, holders, quotas.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use onebuf_core::error::human_bytes;

use super::{Entry, Holder, MAX_HOLDERS, MAX_NAME_BYTES, PAGE};
use crate::channel::Peer;
use crate::share::SharedBuffer;

/// A connection's number, never used twice.
pub(super) type ClientId = u64;

/// What each user may have published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Names.
    pub names: usize,
    /// Bytes of memory in the objects under them: the whole file's, where an object is one, at the time it is published; else
    /// what its producer says.
    pub bytes: u64,
}

/// Why something is not done.
pub(super) type Refusal = String;

pub(super) struct Registry {
    quota: Quota,
    /// Names in all, since each holds a descriptor.
    most_names: usize,
    names: BTreeMap<String, Published>,
    used: HashMap<u32, Used>,
}

#[derive(Default)]
struct Used {
    names: usize,
    bytes: u64,
}

struct Published {
    share: SharedBuffer,
    producer: Peer,
    /// `None` once it is gone.
    connection: Option<ClientId>,
    /// Each connection that holds it, with how often it opened it.
    holders: BTreeMap<ClientId, (Peer, u64)>,
}

impl Registry {
    pub(super) fn new(quota: Quota, most_names: usize) -> Registry {
        Registry { quota, most_names, names: BTreeMap::new(), used: HashMap::new() }
    }

    pub(super) fn publish(
        &mut self,
        client: ClientId,
        peer: Peer,
        name: String,
        share: SharedBuffer,
    ) -> Result<(), Refusal> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(format!("a name has 1 to {MAX_NAME_BYTES} bytes and no control characters"));
        }
        if let Some(there) = self.names.get(&name) {
            return Err(format!("`{name}` is taken: process {} published it", there.producer.pid));
        }
        if self.names.len() >= self.most_names {
            return Err(format!("{} names are published, and there is room for no more", self.most_names));
        }
        let bytes = share.held_bytes();
        let used = self.used.entry(peer.uid).or_default();
        let total = used.bytes.saturating_add(bytes);
        if used.names >= self.quota.names || total > self.quota.bytes {
            return Err(format!(
                "user {} has published {} name(s) of {}, and may have {} of {}",
                peer.uid,
                used.names,
                human_bytes(used.bytes),
                self.quota.names,
                human_bytes(self.quota.bytes)
            ));
        }
        (used.names, used.bytes) = (used.names + 1, total);
        let published =
            Published { share, producer: peer, connection: Some(client), holders: BTreeMap::new() };
        self.names.insert(name, published);
        Ok(())
    }

    pub(super) fn open(&mut self, client: ClientId, peer: Peer, name: &str) -> Result<SharedBuffer, Refusal> {
        let published = self.names.get_mut(name).ok_or_else(|| unknown(name))?;
        published.holders.entry(client).or_insert((peer, 0)).1 += 1;
        Ok(published.share.clone())
    }

    /// Ends one lease of a client's, or else its publication; with the connections to be told that the producer is gone.
    pub(super) fn close(&mut self, client: ClientId, name: &str) -> Result<Vec<ClientId>, Refusal> {
        let published = self.names.get_mut(name).ok_or_else(|| unknown(name))?;
        let mut told = Vec::new();
        if let Some((_, leases)) = published.holders.get_mut(&client) {
            *leases -= 1;
            if *leases == 0 {
                published.holders.remove(&client);
            }
        } else if published.connection == Some(client) {
            published.connection = None;
            told = published.holders.keys().copied().collect();
        } else {
            return Err(format!("this connection neither holds nor published `{name}`"));
        }
        self.forget_if_unused(name);
        Ok(told)
    }

    /// Ends everything of a connection that is gone; with whom to tell of which name.
    pub(super) fn leave(&mut self, client: ClientId) -> Vec<(ClientId, String)> {
        let mut told = Vec::new();
        let mut touched = Vec::new();
        for (name, published) in &mut self.names {
            let held = published.holders.remove(&client).is_some();
            let made = published.connection == Some(client);
            if made {
                published.connection = None;
                told.extend(published.holders.keys().map(|&holder| (holder, name.clone())));
            }
            if held || made {
                touched.push(name.clone());
            }
        }
        for name in touched {
            self.forget_if_unused(&name);
        }
        told
    }

    /// Takes a name away, for its producer's user or one that may do so for all; with whom to tell.
    pub(super) fn release(&mut self, peer: Peer, rules: bool, name: &str) -> Result<Vec<ClientId>, Refusal> {
        let published = self.names.get(name).ok_or_else(|| unknown(name))?;
        if peer.uid != published.producer.uid && !rules {
            return Err(format!("`{name}` is user {}'s", published.producer.uid));
        }
        let told = published.holders.keys().copied().collect();
        self.forget(name);
        Ok(told)
    }

    pub(super) fn list(&self, after: &str) -> (Vec<Entry>, bool) {
        let range = self.names.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let mut rest = range.map(|(name, published)| published.entry(name, 0));
        let page: Vec<Entry> = rest.by_ref().take(PAGE).collect();
        (page, rest.next().is_some())
    }

    pub(super) fn inspect(&self, name: &str) -> Result<Entry, Refusal> {
        self.names.get(name).map(|published| published.entry(name, MAX_HOLDERS)).ok_or_else(|| unknown(name))
    }

    fn forget_if_unused(&mut self, name: &str) {
        let unused = |p: &Published| p.connection.is_none() && p.holders.is_empty();
        if self.names.get(name).is_some_and(unused) {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: &str) {
        let Some(published) = self.names.remove(name) else { return };
        let uid = published.producer.uid;
        if let Some(used) = self.used.get_mut(&uid) {
            used.names -= 1;
            used.bytes -= published.share.held_bytes();
            if used.names == 0 {
                self.used.remove(&uid);
            }
        }
    }
}

impl Published {
    fn entry(&self, name: &str, most_holders: usize) -> Entry {
        let holder = |peer: &Peer| Holder { pid: peer.pid, uid: peer.uid };
        Entry {
            name: name.to_owned(),
            producer: holder(&self.producer),
            alive: self.connection.is_some(),
            way: self.share.description().way,
            view_bytes: self.share.view_bytes(),
            allocation_bytes: self.share.description().allocation_bytes,
            held: self.holders.len() as u64,
            holders: self.holders.values().take(most_holders).map(|(peer, _)| holder(peer)).collect(),
        }
    }
}

fn unknown(name: &str) -> Refusal {
    format!("there is no `{}` here", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memfd;

    const ONE: Peer = Peer { pid: 1, uid: 10, gid: 10 };
    const TWO: Peer = Peer { pid: 2, uid: 20, gid: 20 };

    fn share() -> SharedBuffer {
        SharedBuffer::from_export(Memfd::create(4096, 4096).unwrap().export(4096).unwrap(), 4096).unwrap()
    }

    fn registry() -> Registry {
        Registry::new(Quota { names: 3, bytes: 8192 }, 4)
    }

    #[test]
    fn a_name_lives_while_somebody_has_it() {
        let mut names = registry();
        names.publish(1, ONE, "a".into(), share()).unwrap();
        names.open(2, TWO, "a").unwrap();
        names.open(2, TWO, "a").unwrap();
        assert_eq!(names.leave(1), [(2, "a".to_owned())]);
        let entry = names.inspect("a").unwrap();
        assert_eq!((entry.alive, entry.held, entry.holders), (false, 1, vec![Holder { pid: 2, uid: 20 }]));
        // Others may still open it.
        names.open(3, ONE, "a").unwrap();
        names.close(3, "a").unwrap();
        assert!(names.close(3, "a").is_err());
        names.close(2, "a").unwrap();
        names.inspect("a").unwrap();
        names.close(2, "a").unwrap();
        assert!(names.inspect("a").unwrap_err().contains("no `a`"));
        assert!(names.used.is_empty());
    }

    #[test]
    fn quotas_are_each_users_own_and_come_back() {
        let mut names = registry();
        for name in ["a", "b"] {
            names.publish(1, ONE, name.into(), share()).unwrap();
        }
        assert!(names.publish(1, ONE, "c".into(), share()).unwrap_err().contains("may have 3 of 8 KiB"));
        names.publish(2, TWO, "c".into(), share()).unwrap();
        names.publish(2, TWO, "d".into(), share()).unwrap();
        assert!(
            names.publish(3, Peer { uid: 30, ..ONE }, "e".into(), share()).unwrap_err().contains("no more")
        );
        names.leave(1);
        names.publish(1, ONE, "e".into(), share()).unwrap();
        assert!(names.publish(1, ONE, "e".into(), share()).unwrap_err().contains("taken"));
        for bad in ["", "new\nline", &"x".repeat(129)] {
            assert!(names.publish(1, ONE, bad.into(), share()).is_err());
        }
    }

    #[test]
    fn a_name_is_taken_away_by_its_user_or_by_who_rules() {
        let mut names = registry();
        names.publish(1, ONE, "a".into(), share()).unwrap();
        names.open(2, TWO, "a").unwrap();
        assert!(names.release(TWO, false, "a").unwrap_err().contains("user 10's"));
        assert_eq!(names.release(TWO, true, "a").unwrap(), [2]);
        assert!(names.leave(1).is_empty() && names.leave(2).is_empty());
        names.publish(1, ONE, "a".into(), share()).unwrap();
        assert!(names.release(ONE, false, "a").unwrap().is_empty());
    }

    #[test]
    fn a_list_goes_on_where_it_ended() {
        let mut names = Registry::new(Quota { names: 100, bytes: u64::MAX }, 100);
        let share = share();
        for i in 0..70 {
            names.publish(1, ONE, format!("n{i:02}"), share.clone()).unwrap();
        }
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or("", |entry: &Entry| &entry.name).to_owned();
            let (page, more) = names.list(&after);
            assert!(page.len() <= PAGE && page.iter().all(|entry| entry.holders.is_empty()));
            all.extend(page);
            if !more {
                break;
            }
        }
        assert_eq!(all.len(), 70);
        assert!(all.is_sorted_by(|a, b| a.name < b.name));
    }
}
