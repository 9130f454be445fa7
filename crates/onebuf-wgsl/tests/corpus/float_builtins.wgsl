@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> v: array<vec3<f32>>;

@compute @workgroup_size(1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let x = a[i]; let y = a[i + 1u]; let z = a[i + 2u];
    var s = abs(x) + min(x, y) + max(x, y) + clamp(x, y, z) + saturate(x);
    s += cos(x) + cosh(x) + sin(x) + sinh(x) + tan(x) + tanh(x);
    s += acos(x) + asin(x) + atan(x) + atan2(x, y) + asinh(x) + acosh(x) + atanh(x);
    s += radians(x) + degrees(x) + ceil(x) + floor(x) + round(x) + fract(x) + trunc(x);
    s += exp(x) + exp2(x) + log(x) + log2(x) + pow(x, y) + sqrt(x) + inverseSqrt(x);
    s += fma(x, y, z) + mix(x, y, z) + step(x, y) + smoothstep(x, y, z) + sign(x) + length(x) + distance(x, y);
    s += modf(x).fract + modf(x).whole + frexp(x).fract + f32(frexp(x).exp) + ldexp(x, 3) + quantizeToF16(x);
    a[i] = s;
    let p = v[i]; let q = v[i + 1u]; let r = v[i + 2u];
    var t = abs(p) + min(p, q) + max(p, q) + clamp(p, q, r) + saturate(p);
    t += cos(p) + sin(p) + atan2(p, q) + round(p) + fract(p) + exp(p) + pow(p, q) + inverseSqrt(p);
    t += fma(p, q, r) + mix(p, q, r) + mix(p, q, x) + step(p, q) + smoothstep(p, q, r) + sign(p);
    t += vec3(dot(p, q), length(p), distance(p, q)) + cross(p, q) + normalize(p);
    t += faceForward(p, q, r) + reflect(p, q) + refract(p, q, x);
    t += modf(p).fract + modf(p).whole + frexp(p).fract + vec3<f32>(frexp(p).exp) + ldexp(p, vec3(1, 2, 3));
    v[i] = t;
}
