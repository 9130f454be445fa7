//! Atomic operations, one after another in one invocation, so that each result is known; and from many invocations at
//! once, where only the sum of all is.

use onebuf_differential::{
    case::Case,
    device::Runner,
    host::{self, Sanitize},
};

/// Every atomic function on a variable `v` of the given type; results go to `out` as words.
fn sequence(ty: &str, suffix: &str, values: [&str; 6], wide: bool) -> String {
    let mut body = String::new();
    let mut slot = 0;
    let mut note = |body: &mut String, text: String| {
        if wide {
            body.push_str(&format!(
                "    {{ let r = {text}; out[{slot}] = u32(r); out[{}] = u32(r >> 32u); }}\n",
                slot + 1
            ));
            slot += 2;
        } else {
            body.push_str(&format!("    out[{slot}] = bitcast<u32>({text});\n"));
            slot += 1;
        }
    };
    for target in ["stored", "local"] {
        for value in values {
            let value = format!("{ty}({value}{suffix})");
            for function in ["Add", "Sub", "And", "Or", "Xor", "Min", "Max", "Exchange"] {
                note(&mut body, format!("atomic{function}(&{target}, {value})"));
            }
            note(&mut body, format!("atomicLoad(&{target})"));
            body.push_str(&format!("    atomicStore(&{target}, {value});\n"));
            note(
                &mut body,
                format!("atomicCompareExchangeWeak(&{target}, {value}, {value} + {ty}(1)).old_value"),
            );
            note(&mut body, format!("atomicCompareExchangeWeak(&{target}, {value}, {ty}(0)).old_value"));
            note(&mut body, format!("atomicLoad(&{target})"));
        }
    }
    format!(
        "@group(0) @binding(0) var<storage, read_write> stored: atomic<{ty}>;
@group(0) @binding(1) var<storage, read_write> out: array<u32, {slot}>;
var<workgroup> local: atomic<{ty}>;
@compute @workgroup_size(1) fn main() {{\n{body}}}"
    )
}

fn sources() -> Vec<(&'static str, String)> {
    let signed = ["7", "-3", "2147483647", "-2147483647", "0", "12345"];
    let unsigned = ["7", "3", "2147483648", "4294967295", "0", "12345"];
    let mut sources = vec![
        ("i32", sequence("i32", "", signed, false)),
        ("u32", sequence("u32", "u", unsigned, false)),
        ("i64", sequence("i64", "li", signed, true)),
        ("u64", sequence("u64", "lu", unsigned, true)),
    ];
    sources.push((
        "f32",
        "@group(0) @binding(0) var<storage, read_write> stored: atomic<f32>;
         @group(0) @binding(1) var<storage, read_write> out: array<u32, 4>;
         @compute @workgroup_size(1) fn main() {
             out[0] = bitcast<u32>(atomicAdd(&stored, 1.5));
             out[1] = bitcast<u32>(atomicSub(&stored, 4.25));
             out[2] = bitcast<u32>(atomicExchange(&stored, 8.0));
             out[3] = bitcast<u32>(atomicLoad(&stored));
         }"
        .to_owned(),
    ));
    sources.push((
        "many at once",
        "@group(0) @binding(0) var<storage, read_write> stored: array<atomic<u32>, 8>;
         @group(0) @binding(1) var<storage, read_write> out: array<u32, 64>;
         var<workgroup> local: array<atomic<i32>, 3>;
         @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) t: u32, @builtin(workgroup_id) g: vec3<u32>) {
             atomicAdd(&stored[0], t + g.x);
             atomicSub(&stored[1], t);
             atomicMin(&stored[2], 1000u - t);
             atomicMax(&stored[3], t * 3u);
             atomicAnd(&stored[4], ~(1u << (t & 31u)) | 5u);
             atomicOr(&stored[5], 1u << (t & 31u));
             atomicXor(&stored[6], t * 77u);
             atomicAdd(&local[0], i32(t) - 40);
             atomicMax(&local[1], i32(t) - 70);
             atomicMin(&local[2], -i32(t));
             workgroupBarrier();
             if t < 3u && g.x == 0u { out[t] = u32(atomicLoad(&local[t])); }
             loop {
                 let seen = atomicLoad(&stored[7]);
                 if atomicCompareExchangeWeak(&stored[7], seen, seen + 2u).exchanged { break; }
             }
         }"
        .to_owned(),
    ));
    sources
}

#[test]
fn atomics_agree() {
    let cases: Vec<Case> = sources()
        .into_iter()
        .map(|(name, source)| {
            let mut case = Case::new(name, &source, |binding| vec![0; binding.min_bytes as usize])
                .unwrap_or_else(|error| panic!("{error:#}\n{source}"));
            if name == "many at once" {
                case.grid = [3, 1, 1];
            }
            case
        })
        .collect();
    let all: Vec<&Case> = cases.iter().collect();
    let host = host::run(&all, Sanitize::All).unwrap_or_else(|error| panic!("{error:#}"));
    let Some(runner) = Runner::open().unwrap_or_else(|error| panic!("{error:#}")) else { return };
    let device = runner.run(&all).unwrap_or_else(|error| panic!("{error:#}"));
    let mut compared = 0;
    for ((case, host), device) in cases.iter().zip(&host).zip(&device) {
        let Some(device) = device else { continue };
        for ((binding, host), device) in case.kernel.interface().bindings.iter().zip(host).zip(device) {
            assert_eq!(host, device, "{}: {}", case.name, binding.name);
        }
        compared += 1;
    }
    assert!(compared >= 3, "{compared} cases compared");
}
