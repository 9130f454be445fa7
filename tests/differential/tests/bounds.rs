//! Accesses out of range: the CPU, under ASan, and the Vulkan device must do the same with every index.

use onebuf_differential::{
    case::Case,
    device::Runner,
    host::{self, Sanitize},
};

/// Indices inside, at the edge and far outside of arrays of 2 to 5 elements.
const INDICES: [u32; 16] =
    [0, 1, 2, 3, 4, 5, 6, 7, 15, 16, 17, 1000, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];

const SOURCE: &str = "
    struct Row { cells: array<vec3<f32>, 3>, last: f32 }
    struct Table { head: array<u32, 4>, rows: array<Row> }
    struct Fixed { list: array<vec4<i32>, 5>, grid: array<array<u32, 2>, 3>, m: mat3x4<f32> }
    @group(0) @binding(0) var<storage> indices: array<u32>;
    @group(0) @binding(1) var<storage, read_write> out: array<array<u32, 40>, 16>;
    @group(0) @binding(2) var<storage, read_write> flat: array<u32>;
    @group(0) @binding(3) var<storage, read_write> table: Table;
    @group(0) @binding(4) var<storage, read_write> fixed: Fixed;
    @group(0) @binding(5) var<uniform> uni: array<vec4<u32>, 3>;
    var<private> own: array<u32, 3> = array(7u, 8u, 9u);
    var<workgroup> shared_list: array<u32, 4>;
    const LOOKUP = array<u32, 3>(11u, 12u, 13u);

    fn put(p: ptr<function, array<u32, 3>>, i: u32, v: u32) { (*p)[i] = v; }

    // One index after another, so that what each finds is known.
    @compute @workgroup_size(1)
    fn main() {
        for (var t = 0u; t < 16u; t++) { one(t); }
    }

    fn one(t: u32) {
        let i = indices[t];
        let s = i32(i);
        var n = 0u;
        // Reads.
        var list = array<u32, 3>(21u, 22u, 23u);
        var v = vec3<u32>(31u, 32u, 33u);
        var m = mat2x3<f32>(vec3(1.0, 2.0, 3.0), vec3(4.0, 5.0, 6.0));
        shared_list = array(41u, 42u, 43u, 44u);
        out[t][0] = flat[i];
        out[t][1] = flat[s];
        out[t][2] = u32(table.rows[i].cells[1].y);
        out[t][3] = u32(table.rows[1].cells[i].z);
        out[t][4] = u32(table.rows[1].cells[2][i]);
        out[t][5] = u32(table.rows[i].cells[i][i]);
        out[t][6] = table.head[i];
        out[t][7] = u32(fixed.list[i].x);
        out[t][8] = u32(fixed.list[1][i]);
        out[t][9] = fixed.grid[i][1];
        out[t][10] = fixed.grid[2][i];
        out[t][11] = u32(fixed.m[i].w);
        out[t][12] = u32(fixed.m[1][i]);
        out[t][13] = uni[i].x;
        out[t][14] = uni[2][i];
        out[t][15] = own[i];
        out[t][16] = shared_list[i];
        out[t][17] = list[i];
        out[t][18] = v[i];
        out[t][19] = u32(m[i].y);
        out[t][20] = u32(m[1][i]);
        out[t][21] = LOOKUP[i];
        out[t][22] = list[s];
        let value = vec4<u32>(51u, 52u, 53u, t);
        out[t][23] = value[i];
        // Stores, each seen from all that could have been hit.
        list[i] = 100u;
        out[t][24] = list[0] + 3u * list[1] + 5u * list[2];
        v[i] = 100u;
        out[t][25] = v.x + 3u * v.y + 5u * v.z;
        m[i].x = 100.0;
        m[1][i] = 200.0;
        out[t][26] = u32(m[0].x + 3.0 * m[1].x + 5.0 * m[1].y + 7.0 * m[1].z);
        own[i] = 100u;
        out[t][27] = own[0] + 3u * own[1] + 5u * own[2];
        shared_list[i] = 100u;
        out[t][28] = shared_list[0] + 3u * shared_list[1] + 5u * shared_list[2] + 7u * shared_list[3];
        put(&list, i, 55u);
        out[t][29] = list[0] + 3u * list[1] + 5u * list[2];
        flat[i] += 1u;
        table.rows[i].last += 1.0;
        table.rows[0].cells[i].x += 1.0;
        table.rows[1].cells[1][i] += 1.0;
        table.head[i] += 1u;
        fixed.list[i].y += 1;
        fixed.grid[i][i] += 1u;
        fixed.m[i][1] += 1.0;
        out[t][30] = arrayLength(&flat) + 100u * arrayLength(&table.rows);
        out[i][31] = 5u;
        out[t][i] = 6u;
        own = array(7u, 8u, 9u);
    }";

#[test]
fn every_index_means_the_same() {
    let case = Case::new("bounds", SOURCE, |binding| {
        let bytes = match binding.name.as_str() {
            "indices" => return INDICES.iter().flat_map(|index| index.to_le_bytes()).collect(),
            "out" => vec![0u32; 16 * 40],
            "flat" => (0..5).collect(),
            "table" => (0..4 + 16 * 3).map(|word| (word as f32).to_bits()).collect(),
            _ => (0..binding.min_bytes as u32 / 4).collect(),
        };
        bytes.into_iter().flat_map(u32::to_le_bytes).collect()
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
    let host = host::run(&[&case], Sanitize::All).unwrap_or_else(|error| panic!("{error:#}")).remove(0);
    let Some(runner) = Runner::open().unwrap_or_else(|error| panic!("{error:#}")) else { return };
    let device = runner.run(&[&case]).unwrap_or_else(|error| panic!("{error:#}")).remove(0);
    let device = device.expect("a device with i32, u32 and f32");
    let mut faults = Vec::new();
    for ((binding, host), device) in case.kernel.interface().bindings.iter().zip(&host).zip(&device) {
        for (index, (a, b)) in host.chunks_exact(4).zip(device.chunks_exact(4)).enumerate() {
            if a != b {
                faults.push(format!("{} word {index}: CPU {a:?}, device {b:?}", binding.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
