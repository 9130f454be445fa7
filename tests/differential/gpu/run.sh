#!/bin/bash
# Everything on one machine with a GPU: results, speed, and compute-sanitizer on a part of the programs.
#   run.sh FOLDER-WITH-CASES FOLDER-WITH-SPEED [OUTPUT-FOLDER]
cd "$(dirname "$0")" || exit 2
cases=$1 speed=$2 out=${3:-/tmp/onebuf-gpu}
mkdir -p "$out"
timeout 240 python3 run.py "$cases" --cubins "$out/cubins" --seconds 220 2>&1 | tee "$out/results.txt"
timeout 100 python3 speed.py "$speed" 2>&1 | tee "$out/speed.txt"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
for tool in memcheck racecheck synccheck initcheck; do
    # Cubins are taken from the first run, so that only kernels are watched.
    timeout 60 "$sanitizer" --tool $tool --error-exitcode 9 python3 run.py "$cases" --cubins "$out/cubins" \
        --limit 2 --programs 25 > "$out/$tool.txt" 2>&1
    echo "compute-sanitizer $tool: exit $?; $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.txt" | tail -1); $(grep RESULT "$out/$tool.txt")"
done
tail -n 4 "$out/results.txt"
tail -n 9 "$out/speed.txt"
