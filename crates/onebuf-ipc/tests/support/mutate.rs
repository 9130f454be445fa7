//! Messages that are nearly right: what a fuzzer sends. Bodies are changed as trees, so that most of them still are JSON and
//! reach the checks behind the parser; then, now and then, as bytes, and so are headers.

use fastrand::Rng;
use onebuf_core::{HandleKind, Token};
use onebuf_ipc::SharedBuffer;
use onebuf_ipc::broker::{Answer, Entry, Holder, Request};
use onebuf_ipc::wire::{MAX_PACKET_BYTES, MAX_TEXT_BYTES, Message};
use serde_json::{Map, Value};

use super::packet;

/// One message of each kind that the protocol has, with the names and the share that a test uses.
pub(crate) fn every_message(share: &SharedBuffer, names: &[&str]) -> Vec<Value> {
    let description = || share.description().clone();
    // Of memory that the driver opens by a token there are no objects here, but descriptors of the right sort.
    let of_way = |way: HandleKind| {
        let token = way.has_token().then_some(Token([1; 64]));
        onebuf_ipc::Description { way, token, ..description() }
    };
    let ways = [HandleKind::Memfd, HandleKind::Memfd, HandleKind::CudaIpc, HandleKind::CudaPool];
    let holder = Holder { pid: 1, uid: 0 };
    let entry = |name: &str| Entry {
        name: name.into(),
        producer: holder,
        alive: true,
        way: description().way,
        view_bytes: 1,
        allocation_bytes: 4096,
        held: 1,
        holders: vec![holder; 2],
    };
    let mut messages = vec![
        Message::Hello { release: "a stranger".into() },
        Message::Refuse { reason: "no".into() },
        Message::Ring { slots: 2 },
        Message::Note { text: "n".into() },
        Message::Answer(Answer::Done),
        Message::Answer(Answer::Names {
            entries: names.iter().map(|name| entry(name)).collect(),
            more: false,
        }),
        Message::Answer(Answer::Refused { reason: "no".into() }),
    ];
    messages.extend(ways.map(|way| Message::Answer(Answer::Share { description: of_way(way) })));
    for name in names {
        let name = || (*name).to_owned();
        messages.extend(ways.map(|way| Message::Share { name: name(), description: of_way(way) }));
        messages.extend(
            ways.map(|way| Message::Request(Request::Publish { name: name(), description: of_way(way) })),
        );
        messages.extend([
            Message::Answer(Answer::Entry(entry(&name()))),
            Message::Answer(Answer::Gone { name: name() }),
            Message::Request(Request::Open { name: name() }),
            Message::Request(Request::Close { name: name() }),
            Message::Request(Request::List { after: name() }),
            Message::Request(Request::Inspect { name: name() }),
            Message::Request(Request::Release { name: name() }),
        ]);
    }
    messages.iter().map(|message| serde_json::to_value(message).unwrap()).collect()
}

/// A packet that carries `message`, changed in up to three places, and is said to come with `fds` descriptors.
pub(crate) fn changed(
    random: &mut Rng,
    version: u16,
    message: &Value,
    others: &[Value],
    fds: usize,
) -> Vec<u8> {
    let mut message = message.clone();
    for _ in 0..[0, 0, 1, 1, 1, 2, 3][random.usize(0..7)] {
        change_tree(random, &mut message, others);
    }
    let mut body = serde_json::to_vec(&message).unwrap();
    if random.u8(0..16) == 0 {
        change_bytes(random, &mut body);
    }
    let said = if random.u8(0..30) == 0 { random.u16(..) } else { fds as u16 };
    let version = if random.u8(0..60) == 0 { random.u16(0..4) } else { version };
    let mut bytes = packet(version, said, &body);
    match random.u8(0..120) {
        0 => {
            let at = random.usize(0..16);
            bytes[at] ^= 1 << random.u8(0..8);
        }
        1 => bytes.truncate(random.usize(0..bytes.len())),
        2 => bytes.resize(bytes.len() + random.usize(0..MAX_PACKET_BYTES), random.u8(..)),
        3 => {
            let length = random.usize(0..MAX_PACKET_BYTES + 4000);
            bytes = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        }
        _ => {}
    }
    bytes
}

fn change_bytes(random: &mut Rng, body: &mut Vec<u8>) {
    match random.u8(0..4) {
        0 => body.truncate(random.usize(0..=body.len())),
        1 if !body.is_empty() => {
            let at = random.usize(0..body.len());
            body[at] = random.u8(..);
        }
        2 => body.extend(std::iter::repeat_with(|| random.u8(..)).take(40)),
        _ => {
            // A piece of it again: keys that come twice, objects in objects.
            let from = random.usize(0..=body.len());
            let to = random.usize(from..=body.len());
            let piece = body[from..to].to_vec();
            let at = random.usize(0..=body.len());
            body.splice(at..at, piece);
        }
    }
}

/// Changes one place of a tree, each with the same chance.
fn change_tree(random: &mut Rng, tree: &mut Value, others: &[Value]) {
    let mut at = random.usize(0..count(tree));
    let place = find(tree, &mut at).unwrap();
    match place {
        Value::Number(number) if random.u8(0..8) > 0 => {
            *place = other_number(random, number.as_u64().unwrap_or(0))
        }
        Value::String(text) if random.u8(0..8) > 0 => *text = other_text(random, text),
        Value::Bool(value) => *value = !*value,
        Value::Object(fields) if !fields.is_empty() => change_object(random, fields, others),
        Value::Array(items) if !items.is_empty() => match random.u8(0..3) {
            0 => items.truncate(random.usize(0..items.len())),
            1 => {
                let item = items[random.usize(0..items.len())].clone();
                items.resize(items.len() + random.usize(1..200), item);
            }
            _ => {
                let at = random.usize(0..items.len());
                items[at] = any_part(random, others);
            }
        },
        _ => *place = any_part(random, others),
    }
}

fn change_object(random: &mut Rng, fields: &mut Map<String, Value>, others: &[Value]) {
    let keys: Vec<String> = fields.keys().cloned().collect();
    let key = keys[random.usize(0..keys.len())].clone();
    match random.u8(0..4) {
        0 => drop(fields.remove(&key)),
        1 => drop(fields.insert("more".into(), Value::from(1))),
        2 => {
            let value = fields.remove(&key).unwrap();
            let key = keys[random.usize(0..keys.len())].to_uppercase();
            fields.insert(key, value);
        }
        _ => drop(fields.insert(key, any_part(random, others))),
    }
}

/// A part of any message.
fn any_part(random: &mut Rng, others: &[Value]) -> Value {
    let mut other = others[random.usize(0..others.len())].clone();
    let mut at = random.usize(0..count(&other));
    match random.u8(0..6) {
        0 => Value::Null,
        1 => Value::from(-random.i64(1..i64::MAX)),
        2 => Value::from(random.f64() * 1e30),
        3 => (0..random.usize(1..200)).fold(Value::Null, |inner, _| Value::Array(vec![inner])),
        _ => find(&mut other, &mut at).unwrap().take(),
    }
}

/// A number near a border: of the value, of pages, of the types.
fn other_number(random: &mut Rng, value: u64) -> Value {
    let near = random.u64(0..3).wrapping_sub(1);
    let border = [value, 0, 1 << 12, 1 << 13, 1 << 31, 1 << 32, 1 << 53, 1 << 63, u64::MAX - 4095, u64::MAX];
    Value::from(match random.u8(0..8) {
        0 => random.u64(..) >> random.u32(0..64),
        1 => value.wrapping_mul(random.u64(0..5)),
        2 => value / 2,
        3 => value.wrapping_add(4096 * random.u64(0..4)).wrapping_sub(4096),
        _ => border[random.usize(0..border.len())].wrapping_add(near),
    })
}

fn other_text(random: &mut Rng, text: &str) -> String {
    let length = [0, 1, 127, 128, 129, MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1, 3 * MAX_TEXT_BYTES];
    match random.u8(0..7) {
        // The object, the boot and the driver are told apart by such numbers.
        6 => format!("{:032x}", random.u128(..)),
        // The kinds of handle are named by a text of the description.
        0 | 1 => {
            let way = HandleKind::ALL[random.usize(0..HandleKind::ALL.len())];
            serde_json::to_value(way).unwrap().as_str().unwrap().to_owned()
        }
        2 => ["\u{0}", "a\nb", "\u{202e}x", "é".repeat(512).as_str(), "../../etc", " "][random.usize(0..6)]
            .to_owned(),
        3 => {
            let mut chars: Vec<char> = text.chars().collect();
            if !chars.is_empty() {
                let at = random.usize(0..chars.len());
                // Of its own, so that an identity is another one, or anything.
                let own = chars[random.usize(0..chars.len())];
                chars[at] = if random.bool() { own } else { random.char('\0'..='\u{ffff}') };
            }
            chars.into_iter().collect()
        }
        _ => "x".repeat(length[random.usize(0..length.len())]),
    }
}

/// How many places a tree has.
fn count(tree: &Value) -> usize {
    1 + match tree {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// The place with a number, from the root on.
fn find<'a>(tree: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    if *at == 0 {
        return Some(tree);
    }
    *at -= 1;
    match tree {
        Value::Array(items) => items.iter_mut().find_map(|item| find(item, at)),
        Value::Object(fields) => fields.values_mut().find_map(|field| find(field, at)),
        _ => None,
    }
}
