#!/usr/bin/env bash
# Runs this bundle: every test program, sanitizers, the command, the examples, the benchmarks. Needs bash and coreutils,
# no Rust and no network. Logs go to ${OUT:-./out}; the last things printed are a table and the totals. Exits 1 where
# something failed.
#   ONEBUF_REQUIRE=vulkan,cuda  backends that must be there: a missing one fails its tests
#   ONEBUF_VALIDATION=1         run under the Khronos validation layer, where it is installed
#   ONEBUF_TEST_SIMULATED=1     simulated devices on top of each real one too, as in CI
#   LIMIT=240                   seconds that one process may run
#   JOBS=4                      processes of the sanitizer at once
#   FILTER=name                 only tests whose name holds this, and nothing but tests
#   PARTS=tests,sanitizer,command,bench   which parts run; one more is marks, which measures launches with other numbers of events
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-./out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here" || exit 1
export ONEBUF_REQUIRE=${ONEBUF_REQUIRE:-vulkan} ONEBUF_TEST_SIMULATED=${ONEBUF_TEST_SIMULATED:-0}
limit=${LIMIT:-240}
jobs=${JOBS:-4}
parts=",${PARTS:-tests,sanitizer,command,bench},"
[ -z "${FILTER:-}" ] || parts=,tests,
[[ ,$ONEBUF_REQUIRE, == *,cuda,* ]] && cuda=1 || cuda=
names=()
began=$(date +%s)

wants() { [[ $parts == *,$1,* ]]; }

# run NAME COMMAND...: one process, with its output in $out/NAME.log, and its status and seconds in $out/NAME.end.
run() {
  local name=$1 start status
  shift
  start=$(date +%s.%N)
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
  status=$?
  awk -v s="$status" -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%d %.1f\n", s, b - a }' >"$out/$name.end"
}

# alone NAME COMMAND...: when all others are done. beside NAME COMMAND...: as soon as a place is free.
alone() {
  wait
  names+=("$1")
  run "$@"
}
beside() {
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  names+=("$1")
  run "$@" &
}

sanitizer() {
  command -v compute-sanitizer && return
  ls -1 /usr/local/cuda*/bin/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null | head -n 1
}

echo "commit: $(cat "$here/commit")"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
"$here/bin/onebuf" devices || true

if wants sanitizer && [ -n "$cuda" ]; then
  checker=$(sanitizer)
  [ -n "$checker" ] || echo "not run: there is no compute-sanitizer"
fi
if [ -n "${checker:-}" ]; then
  # Tests fail calls on purpose, and children fault on purpose: what counts is what kernels do.
  check=("$checker" --target-processes application-only --report-api-errors no --error-exitcode 99)
  suite=$here/tests/onebuf-cuda-suite
  for module in contract memory kernels capacity; do
    beside "memcheck.cuda.$module" "${check[@]}" --tool memcheck --leak-check no "$suite" "$module::" \
      --skip a_fault --skip eight_gib --skip a_thousand
    beside "racecheck.cuda.$module" "${check[@]}" --tool racecheck "$suite" "$module::" \
      --skip a_fault --skip eight_gib --skip a_thousand --skip grids_past --skip sixteen_threads --skip streams_follow
  done
  export ONEBUF_TEST_BACKENDS=cuda
  for module in kernels layouts workgroups bounds memory; do
    beside "memcheck.conformance.$module" "${check[@]}" --tool memcheck --leak-check no \
      "$here/tests/onebuf-tests-conformance" "$module::" --skip ten_thousand
  done
  for module in workgroups kernels; do
    beside "racecheck.conformance.$module" "${check[@]}" --tool racecheck \
      "$here/tests/onebuf-tests-conformance" "$module::"
  done
  unset ONEBUF_TEST_BACKENDS
fi
# One at a time: a GPU gives each process its slice of time in turn, so small work of many crawls, and some tests fill
# the GPU's memory.
if wants tests; then
  for program in "$here"/tests/*; do
    alone "$(basename "$program")" "$program" ${FILTER:+"$FILTER"}
  done
fi
wait
if wants command; then
  beside report-json "$here/bin/onebuf" report --verify --json
  for program in "$here"/examples/*; do
    name=$(basename "$program")
    case $name in
      pipeline) beside "example-$name" "$program" --input "$here/assets/coffee.png" --out "$out/demo" ;;
      *.so | *.py) ;;
      *) beside "example-$name" "$program" ;;
    esac
  done
  if [ -n "$cuda" ] && command -v python3 >/dev/null && [ -f "$here/python/dlpack.py" ]; then
    beside dlpack-python python3 "$here/python/dlpack.py" "$here"/lib/*dlpack*.so
    beside handles-python python3 "$here/python/handles.py" "$here"/lib/*dlpack*.so
  fi
  alone report "$here/bin/onebuf" report --verify --measure
fi
if wants bench; then
  # into FILE COMMAND...: standard output in a file of its own.
  into() { "${@:2}" >"$1"; }
  export -f into
  rounds=${ROUNDS:-8}
  bench=("$here/bin/onebuf" bench --rounds "$rounds" --json 1 2 3 4 5 6 7 --device)
  if [ -n "$cuda" ]; then
    alone bench-cuda bash -c 'into "$@"' - "$out/bench-cuda.json" "${bench[@]}" cuda
    if [ -f "$here/python/bench.py" ] && command -v python3 >/dev/null; then
      alone bench-python bash -c 'into "$@"' - "$out/bench-python.json" python3 "$here/python/bench.py" --rounds "$rounds"
      python3 "$here/python/bench.py" --table "$out/bench-cuda.json" "$out/bench-python.json" >"$out/bench-table.md" &&
        cat "$out/bench-table.md"
    fi
  fi
  alone bench-vulkan bash -c 'into "$@"' - "$out/bench-vulkan.json" "${bench[@]}" vulkan
fi
wait
if wants marks; then
  for marks in 4,16 1,16 4,32 4,64 16,64 0,64; do
    for line in 1 2; do
      ONEBUF_CUDA_MARKS=$marks "$here/bin/onebuf" bench --device cuda --rounds 6 --json "$line" >"$out/marks-$marks-$line.json"
      awk -v m="$marks" '/"name":|"onebuf":|"raw":|"ratio_raw":/ { gsub(/[",]/, ""); sub(/^ +/, ""); s = s "  " $0 }
        END { print "marks " m ":" s }' "$out/marks-$marks-$line.json"
    done
  done
fi

# The sum of the numbers before a word in the closing lines of Rust's test harness.
count() { grep -a '^test result: ' "$2" | grep -oE "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }'; }

passed=0 failed=0 ignored=0 failures=()
printf '\n%-44s %6s %6s %7s %8s\n' program passed failed ignored seconds
for name in "${names[@]}"; do
  read -r status seconds <"$out/$name.end"
  log=$out/$name.log
  ok=$(count passed "$log") bad=$(count failed "$log") skip=$(count ignored "$log")
  if [ "$status" -ne 0 ]; then
    [ "$bad" -gt 0 ] || bad=1
    case $status in
      99) why='the sanitizer complains' ;;
      124 | 137) why="killed after $limit s" ;;
      *) why="status $status" ;;
    esac
    failures+=("$name: $why" "$(grep -aE '^test .* FAILED$|^skipped|panicked at|ERROR SUMMARY' "$log" | grep -av '^skipped' | head -n 20)" "$(tail -n 12 "$log")")
  elif ! grep -qa '^test result: ' "$log"; then
    ok=1
  fi
  printf '%-44s %6d %6d %7d %8s\n' "$name" "$ok" "$bad" "$skip" "$seconds"
  passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + skip))
done
[ ${#failures[@]} -eq 0 ] || printf '\n%s\n' "${failures[@]}"
printf '\n%d passed, %d failed, %d skipped, in %d s\n' "$passed" "$failed" "$ignored" "$(($(date +%s) - began))"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
