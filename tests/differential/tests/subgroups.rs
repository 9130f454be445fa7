//! Subgroup operations against what they mean for subgroups of 32: whole ones, a part at the end of the workgroup, and those
//! of whom only some threads are there.
//!
//! They run on the CPU alone: subgroups of other devices have other sizes.

use onebuf_differential::{
    case::Case,
    host::{self, Sanitize},
};

/// Two whole subgroups and one of 16.
const N: usize = 80;

/// The input of a thread.
fn input(i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761) >> 7
}

/// The threads of `i`'s subgroup that `here` holds for.
fn members(i: usize, here: impl Fn(usize) -> bool) -> Vec<usize> {
    let first = i / 32 * 32;
    (first..N.min(first + 32)).filter(|&other| here(other)).collect()
}

/// Bodies with what each thread must find. All are compiled together.
#[derive(Default)]
struct Checks(Vec<(Case, Box<dyn Fn(usize) -> u32>)>);

impl Checks {
    fn add(&mut self, body: &str, expected: impl Fn(usize) -> u32 + 'static) {
        let source = format!(
            "enable f16;
             @group(0) @binding(0) var<storage> src: array<u32>;
             @group(0) @binding(1) var<storage, read_write> dst: array<u32>;
             fn total(v: u32) -> u32 {{ return subgroupAdd(v); }}
             @compute @workgroup_size({N})
             fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_invocation_id) lane: u32) {{
                 let x = src[i];
                 {body}
             }}"
        );
        let case = Case::new(body, &source, |binding| match binding.name.as_str() {
            "src" => (0..N).flat_map(|i| input(i).to_le_bytes()).collect(),
            _ => vec![0; 4 * N],
        })
        .unwrap_or_else(|error| panic!("{error:#}"));
        self.0.push((case, Box::new(expected)));
    }

    fn run(self) {
        let cases: Vec<&Case> = self.0.iter().map(|(case, _)| case).collect();
        let outcomes = host::run(&cases, Sanitize::All).unwrap_or_else(|error| panic!("{error:#}"));
        for ((case, expected), outcome) in self.0.iter().zip(outcomes) {
            let Some(dst) = case.kernel.interface().position("dst") else {
                panic!("no output in {}", case.name)
            };
            for (i, word) in outcome[dst].chunks_exact(4).enumerate() {
                let got = u32::from_le_bytes(word.try_into().unwrap());
                assert_eq!(got, expected(i), "thread {i} of {}", case.name);
            }
        }
    }
}

fn all(i: usize) -> Vec<usize> {
    members(i, |_| true)
}

fn below(i: usize) -> Vec<usize> {
    members(i, |j| j < i)
}

fn upto(i: usize) -> Vec<usize> {
    members(i, |j| j <= i)
}

/// The thread at `lane` of `i`'s subgroup.
fn at(i: usize, lane: usize) -> usize {
    i / 32 * 32 + lane
}

fn sum(threads: &[usize]) -> u32 {
    threads.iter().fold(0, |sum, &i| sum.wrapping_add(input(i)))
}

#[test]
fn reductions_of_whole_and_partial_subgroups() {
    let mut checks = Checks::default();
    checks.add("dst[i] = subgroupAdd(x);", |i| sum(&all(i)));
    checks.add("dst[i] = total(x);", |i| sum(&all(i)));
    checks.add("dst[i] = subgroupMul(x | 1u);", |i| {
        all(i).iter().fold(1, |p, &j| p.wrapping_mul(input(j) | 1))
    });
    checks.add("dst[i] = subgroupMin(x);", |i| all(i).iter().map(|&j| input(j)).min().unwrap());
    checks.add("dst[i] = u32(subgroupMax(i32(x)));", |i| all(i).iter().map(|&j| input(j)).max().unwrap());
    checks.add("dst[i] = subgroupAnd(x | 7u);", |i| all(i).iter().fold(u32::MAX, |p, &j| p & (input(j) | 7)));
    checks.add("dst[i] = subgroupOr(x);", |i| all(i).iter().fold(0, |p, &j| p | input(j)));
    checks.add("dst[i] = subgroupXor(x);", |i| all(i).iter().fold(0, |p, &j| p ^ input(j)));
    checks.add("dst[i] = u32(subgroupAdd(f32(i)));", |i| all(i).iter().sum::<usize>() as u32);
    checks.add("dst[i] = u32(subgroupAdd(vec3<f32>(f32(i), 1.0, 2.0)).x);", |i| {
        all(i).iter().sum::<usize>() as u32
    });
    checks.add("dst[i] = u32(subgroupMax(f16(lane)));", |i| all(i).len() as u32 - 1);
    checks.add("dst[i] = u32(subgroupAdd(i64(x)) >> 3u);", |i| {
        (all(i).iter().map(|&j| u64::from(input(j))).sum::<u64>() >> 3) as u32
    });
    checks.run();
}

#[test]
fn scans() {
    let mut checks = Checks::default();
    checks.add("dst[i] = subgroupInclusiveAdd(x);", |i| sum(&upto(i)));
    checks.add("dst[i] = subgroupExclusiveAdd(x);", |i| sum(&below(i)));
    checks.add("dst[i] = subgroupInclusiveMul(x | 1u);", |i| {
        upto(i).iter().fold(1, |p, &j| p.wrapping_mul(input(j) | 1))
    });
    checks.add("dst[i] = subgroupExclusiveMul(x | 1u);", |i| {
        below(i).iter().fold(1, |p, &j| p.wrapping_mul(input(j) | 1))
    });
    checks.add("dst[i] = u32(subgroupExclusiveAdd(vec2<i32>(1, i32(i))).y);", |i| {
        below(i).iter().sum::<usize>() as u32
    });
    checks.run();
}

#[test]
fn votes_and_shuffles() {
    let mut checks = Checks::default();
    checks.add("dst[i] = subgroupBallot(x % 3u == 0u).x;", |i| {
        all(i).iter().filter(|&&j| input(j) % 3 == 0).fold(0, |b, &j| b | 1 << (j % 32))
    });
    checks.add("dst[i] = subgroupBallot().x;", |i| all(i).iter().fold(0, |b, &j| b | 1 << (j % 32)));
    checks.add("dst[i] = u32(subgroupAll(i < 70u)) + 2u * u32(subgroupAny(i > 40u));", |i| {
        u32::from(all(i).iter().all(|&j| j < 70)) + 2 * u32::from(all(i).iter().any(|&j| j > 40))
    });
    checks.add("dst[i] = subgroupBroadcast(x, 5u) + subgroupBroadcastFirst(x);", |i| {
        input(at(i, 5)).wrapping_add(input(at(i, 0)))
    });
    checks.add("dst[i] = subgroupShuffle(x, (lane * 7u) % 16u);", |i| input(at(i, i % 32 * 7 % 16)));
    checks.add("dst[i] = subgroupShuffleXor(x, 3u);", |i| input(i ^ 3));
    checks.add("dst[i] = select(0u, subgroupShuffleUp(x, 2u), lane >= 2u);", |i| {
        if i % 32 >= 2 { input(i - 2) } else { 0 }
    });
    checks.add("dst[i] = select(0u, subgroupShuffleDown(x, 4u), lane < 8u);", |i| {
        if i % 32 < 8 { input(i + 4) } else { 0 }
    });
    checks.add("dst[i] = quadBroadcast(x, 2u);", |i| input(i / 4 * 4 + 2));
    checks.add("dst[i] = quadSwapX(x) ^ quadSwapY(x) ^ quadSwapDiagonal(x);", |i| {
        input(i ^ 1) ^ input(i ^ 2) ^ input(i ^ 3)
    });
    checks.add(
        "dst[i] = u32(subgroupShuffleXor(f16(lane), 1u)) + u32(subgroupShuffleXor(i64(lane), 1u));",
        |i| 2 * ((i % 32) ^ 1) as u32,
    );
    checks.run();
}

#[test]
fn only_the_threads_that_are_there_take_part() {
    let mut checks = Checks::default();
    checks.add("if x % 2u == 0u { dst[i] = subgroupAdd(x); } else { dst[i] = subgroupMax(x); }", |i| {
        let side = members(i, |j| input(j) % 2 == input(i) % 2);
        if input(i) % 2 == 0 { sum(&side) } else { side.iter().map(|&j| input(j)).max().unwrap() }
    });
    checks.add(
        "if x % 3u == 0u { dst[i] = subgroupExclusiveAdd(x); } else { dst[i] = subgroupInclusiveAdd(x); }",
        |i| {
            if input(i) % 3 == 0 {
                sum(&members(i, |j| j < i && input(j) % 3 == 0))
            } else {
                sum(&members(i, |j| j <= i && input(j) % 3 != 0))
            }
        },
    );
    checks.add("if x % 3u == 0u { dst[i] = total(x); }", |i| {
        if input(i) % 3 == 0 { sum(&members(i, |j| input(j) % 3 == 0)) } else { 0 }
    });
    checks.add("if i % 5u == 1u { return; } dst[i] = subgroupAdd(x);", |i| {
        if i % 5 == 1 { 0 } else { sum(&members(i, |j| j % 5 != 1)) }
    });
    checks.add("var t = 0u; for (var k = 0u; k < 3u; k++) { t += subgroupAdd(x >> k); } dst[i] = t;", |i| {
        (0..3).fold(0u32, |t, k| members(i, |_| true).iter().fold(t, |t, &j| t.wrapping_add(input(j) >> k)))
    });
    checks
        .add("var t = 0u; for (var k = 0u; k < lane % 4u; k++) { t += subgroupAdd(1u); } dst[i] = t;", |i| {
            (0..i % 4).map(|k| members(i, |j| j % 4 > k).len() as u32).sum()
        });
    checks.add(
        "switch lane % 3u { case 0u: { dst[i] = subgroupAdd(1u); } default: { dst[i] = subgroupBroadcastFirst(i); } }",
        |i| {
            let lane = i % 32;
            if lane % 3 == 0 {
                members(i, |j| j % 32 % 3 == 0).len() as u32
            } else {
                members(i, |j| j % 32 % 3 != 0)[0] as u32
            }
        },
    );
    checks.run();
}
