"""Every flag of build b11434's llama-server, llama-cli and llama-fit-params, by how many values it takes.

Source: ``common/arg.cpp:common_params_parser_init``. A test compares it with the binaries' own ``--help``.
Most of these move no memory; they are here so that a command line is never read askew and a flag that the
engine doesn't have is named instead of skipped.
"""

_COMMON = {
    0: """
    --backend-sampling --cache-list --check-tensors --completion-bash --cpu-moe --escape --help --ignore-eos
    --kv-offload --list-devices --log-disable --log-jsonl --log-prefix --log-timestamps --log-verbose
    --no-escape --no-host --no-kv-offload --no-log-jsonl --no-log-prefix --no-log-timestamps --no-op-offload
    --no-perf --no-repack --offline --op-offload --perf --repack --swa-full --usage --verbose --version -bs -cl
    -cmoe -e -h -kvo -nkvo -nr -v
    """,
    1: """
    --adaptive-decay --adaptive-target --batch-size --cache-type-k --cache-type-k-draft --cache-type-v
    --cache-type-v-draft --control-vector --control-vector-scaled --cpu-mask --cpu-mask-batch --cpu-range
    --cpu-range-batch --cpu-strict --cpu-strict-batch --ctx-size --defrag-thold --device --docker-repo
    --dry-allowed-length --dry-base --dry-multiplier --dry-penalty-last-n --dry-sequence-breaker --dynatemp-exp
    --dynatemp-range --fit --fit-ctx --fit-target --flash-attn --frequency-penalty --gpu-layers --grammar
    --grammar-file --hf-file --hf-repo --hf-token --json-schema --json-schema-file --keep --lazy-mode
    --load-mode --log-colors --log-file --log-verbosity --logit-bias --lora --lora-scaled --main-gpu --min-p
    --mirostat --mirostat-ent --mirostat-lr --model --model-url --n-cpu-ffn --n-cpu-moe --n-gpu-layers
    --n-predict --numa --override-kv --override-tensor --parallel --poll --poll-batch --predict
    --presence-penalty --prio --prio-batch --repeat-last-n --repeat-penalty --rope-freq-base --rope-freq-scale
    --rope-scale --rope-scaling --rpc --sampler-seq --samplers --sampling-seq --seed --spec-draft-type-k
    --spec-draft-type-v --split-mode --temp --temperature --tensor-split --threads --threads-batch --top-k
    --top-n-sigma --top-nsigma --top-p --typical --typical-p --ubatch-size --verbosity --xtc-probability
    --xtc-threshold --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow --yarn-ext-factor --yarn-orig-ctx -C
    -Cb -Cr -Crb -b -c -ctk -ctkd -ctv -ctvd -dev -dr -dt -fa -fit -fitc -fitt -hf -hff -hfr -hft -j -jf -l -lm
    -lv -lzm -m -mg -mu -n -ncffn -ncmoe -ngl -np -ot -s -sm -t -tb -ts -ub
    """,
    2: """
    --control-vector-layer-range
    """,
}
_SERVER = {
    0: """
    --agent --cache-idle-slots --cache-prompt --cont-batching --cors-credentials --embd-gemma-default
    --embedding --embeddings --fim-qwen-1.5b-default --fim-qwen-14b-spec --fim-qwen-30b-default
    --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --kv-unified --lora-init-without-apply
    --metrics --models-autoload --no-agent --no-cache-idle-slots --no-cache-prompt --no-cont-batching
    --no-cors-credentials --no-kv-unified --no-models-autoload --no-prefill-assistant --no-slots --no-ui
    --no-ui-mcp-proxy --no-webui --no-webui-mcp-proxy --prefill-assistant --props --rerank --reranking
    --reuse-port --slots --spm-infill --ui --ui-mcp-proxy --webui --webui-mcp-proxy -ag -cb -kvu -no-ag -no-kvu
    -nocb
    """,
    1: """
    --alias --api-key --api-key-file --api-prefix --cache-reuse --checkpoint-min-step --cors-headers
    --cors-methods --cors-origins --embd-normalize --host --kv-unified-per-slot --lookup-cache-dynamic
    --lookup-cache-static --mcp-servers-config --mcp-servers-json --media-path --models-dir --models-max
    --models-preset --mtmd-batch-max-tokens --path --pooling --port --sleep-idle-seconds
    --slot-prompt-similarity --slot-save-path --sse-ping-interval --ssl-cert-file --ssl-key-file --tags
    --threads-http --timeout --tools --tools-runtime --ui-config --ui-config-file --webui-config
    --webui-config-file -a -cms -lcd -lcs -sps -to
    """,
}
_FIT_PARAMS = {
    1: """
    --binary-file --file --fit-print --prompt -bf -f -fitp -p
    """,
}
_CLI = {
    0: """
    --display-prompt --multiline-input --no-display-prompt --no-show-timings --show-timings --simple-io
    --single-turn --verbose-prompt -mli -st
    """,
    1: """
    --audio --binary-file --color --file --image --output --output-file --prompt --server-base --system-prompt
    --system-prompt-file --video -bf -co -f -o -p -sys -sysf
    """,
}
_SERVER_AND_CLI = {
    0: """
    --context-shift --cpu-moe-draft --gpt-oss-120b-default --gpt-oss-20b-default --jinja --mmproj-auto
    --mmproj-offload --no-context-shift --no-jinja --no-mmproj --no-mmproj-auto --no-mmproj-offload
    --no-reasoning-preserve --no-skip-chat-parsing --no-spec-draft-backend-sampling --no-warmup
    --reasoning-preserve --skip-chat-parsing --spec-default --spec-draft-backend-sampling --spec-draft-cpu-moe
    --special --vision-gemma-12b-default --vision-gemma-4b-default --warmup -cmoed -sp
    """,
    1: """
    --cache-ram --chat-template --chat-template-file --chat-template-kwargs --cpu-mask-batch-draft
    --cpu-mask-draft --cpu-range-draft --cpu-strict-batch-draft --cpu-strict-draft --ctx-checkpoints
    --device-draft --draft-p-min --draft-p-split --gpu-layers-draft --hf-repo-draft --image-max-tokens
    --image-min-tokens --log-prompts-dir --mmproj --mmproj-device --mmproj-url --model-draft --n-cpu-moe-draft
    --n-gpu-layers-draft --override-tensor-draft --poll-batch-draft --poll-draft --prio-batch-draft --prio-draft
    --reasoning --reasoning-budget --reasoning-budget-message --reasoning-effort --reasoning-format
    --reverse-prompt --spec-draft-cpu-mask --spec-draft-cpu-mask-batch --spec-draft-cpu-range
    --spec-draft-cpu-strict --spec-draft-cpu-strict-batch --spec-draft-device --spec-draft-hf --spec-draft-model
    --spec-draft-n-cpu-moe --spec-draft-n-max --spec-draft-n-min --spec-draft-ncmoe --spec-draft-ngl
    --spec-draft-override-tensor --spec-draft-p-min --spec-draft-p-split --spec-draft-poll
    --spec-draft-poll-batch --spec-draft-prio --spec-draft-prio-batch --spec-draft-sampling --spec-draft-threads
    --spec-draft-threads-batch --spec-ngram-map-k-min-hits --spec-ngram-map-k-size-m --spec-ngram-map-k-size-n
    --spec-ngram-map-k4v-min-hits --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-size-n
    --spec-ngram-mod-n-match --spec-ngram-mod-n-max --spec-ngram-mod-n-min --spec-ngram-simple-min-hits
    --spec-ngram-simple-size-m --spec-ngram-simple-size-n --spec-synth-len --spec-synth-rates --spec-type
    --swa-checkpoints --threads-batch-draft --threads-draft --video-ffmpeg-dir --video-fps
    --video-timestamp-interval -Cbd -Cd -Crd -cram -ctxcp -devd -hfd -hfrd -md -mm -mmdev -mmu -ncmoed -ngld
    -otd -r -rea -tbd -td
    """,
}

_GROUPS = {
    "llama-server": (_COMMON, _SERVER_AND_CLI, _SERVER),
    "llama-cli": (_COMMON, _SERVER_AND_CLI, _CLI),
    "llama-fit-params": (_COMMON, _FIT_PARAMS),
}


def flag_values(tool: str) -> dict[str, int]:
    """Flag → number of values that it takes, for *tool*. Nothing for a tool that isn't in the table."""
    return {
        flag: values for group in _GROUPS.get(tool, ()) for values, text in group.items() for flag in text.split()
    }
