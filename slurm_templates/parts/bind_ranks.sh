
# --- CPUs of each process: those of its GPU's NUMA domain ---
# The processes of a node read the same files and so divide each domain in the same way. Where a file is missing, a GPU
# has no domain, or a domain has too few cores, no process is bound: nothing here ends a job.
# HPC_LAUNCH_TOPOLOGY is a folder with other /sys, /proc and /dev, for tests.
bind_rank() { # MODE: `exclusive` (a part of the domain's cores, which no other process has) or `node` (all its cores)
    local root=${HPC_LAUNCH_TOPOLOGY:-} gpu_domains=() gpu_names=() listed=() allowed=() cores=() mine=() shares=()
    local rank=${LOCAL_RANK:-} ranks=${LOCAL_WORLD_SIZE:-${LOCAL_SIZE:-}} line domain core own='' first count place
    add_gpu() { # PCI_ADDRESS DEVICE UUID: one that the job may use; its cgroup refuses to open the others
        local domain=-1
        { : <"$root/dev/$2"; } 2>/dev/null || return 0
        { read -r domain <"$root/sys/bus/pci/devices/$1/numa_node"; } 2>/dev/null
        gpu_domains+=("$domain")
        gpu_names+=("$3")
    }
    find_gpus() { # in the order of CUDA and HIP
        local file key value minor uuid number bus node=0
        for file in "$root"/proc/driver/nvidia/gpus/*/information; do # by PCI address, as CUDA numbers GPUs of one model
            [ -r "$file" ] || break
            minor='' uuid=''
            while IFS=: read -r key value; do
                case $key in
                    'Device Minor') minor=${value//[!0-9]/} ;;
                    'GPU UUID') uuid=${value//[[:space:]]/} ;;
                esac
            done <"$file"
            file=${file%/*}
            add_gpu "${file##*/}" "nvidia$minor" "$uuid"
        done
        [ "${#gpu_domains[@]}" -eq 0 ] || return 0
        while [ -d "$root/sys/class/kfd/kfd/topology/nodes/$node" ]; do
            minor=0 bus=0 number=0
            while read -r key value; do
                case $key in
                    drm_render_minor) minor=$value ;;
                    location_id) bus=$value ;;
                    domain) number=$value ;;
                esac
            done 2>/dev/null <"$root/sys/class/kfd/kfd/topology/nodes/$node/properties"
            printf -v key '%04x:%02x:%02x.%x' "$number" "$((bus >> 8))" "$((bus >> 3 & 31))" "$((bus & 7))"
            [ "$minor" -le 0 ] || add_gpu "$key" "dri/renderD$minor" ''
            node=$((node + 1))
        done
    }
    choose() { # VARIABLE: keep the GPUs that it lists, by number or UUID; fails for another one, such as a part of a GPU
        local words word number kept=() names=()
        [ -n "${!1+set}" ] || return 0
        IFS=, read -ra words <<<"${!1}"
        for word in "${words[@]}"; do
            case $word in
                '' | *[!0-9]*)
                    for number in "${!gpu_names[@]}" -1; do
                        [ "$number" -ge 0 ] || return 1
                        if [[ -n $word && ${gpu_names[number]} == "$word"* ]]; then break; fi
                    done
                    ;;
                *) number=$((10#$word)) ;;
            esac
            [ -n "${gpu_domains[number]:-}" ] || return 1
            kept+=("${gpu_domains[number]}")
            names+=("${gpu_names[number]}")
        done
        gpu_domains=("${kept[@]}") gpu_names=("${names[@]}")
    }
    read_cpus() { # LIST, such as 0-3,8: sets listed
        local words word
        listed=()
        IFS=, read -ra words <<<"$1"
        for word in "${words[@]}"; do
            for ((core = 10#${word%-*}; core <= 10#${word#*-}; core++)); do listed[core]=$core; done
        done
    }
    read_cores() { # DOMAIN: sets cores, the CPUs of each of its cores that this process may use
        local cpu siblings
        cores=()
        { read -r line <"$root/sys/devices/system/node/node$1/cpulist"; } 2>/dev/null || return
        read_cpus "$line"
        for cpu in "${!listed[@]}"; do
            [ -n "${allowed[cpu]:-}" ] || continue
            siblings=$cpu
            { read -r siblings <"$root/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list"; } 2>/dev/null
            siblings=${siblings%%[,-]*}
            cores[siblings]+=${cores[siblings]:+,}$cpu
        done
    }
    case ${rank:-x}${ranks:-x} in *[!0-9]*) return 1 ;; esac
    set -- "$1" "$root"/sys/devices/system/node/node[0-9]*
    [ $# -gt 2 ] || return 1 # one domain
    find_gpus
    if [ -n "${gpu_names[0]:-}" ]; then
        choose CUDA_VISIBLE_DEVICES || return
    else # HIP reads either variable, and counts what ROCR leaves it
        choose ROCR_VISIBLE_DEVICES || return
        choose "$([ -n "${HIP_VISIBLE_DEVICES+set}" ] && echo HIP || echo CUDA)_VISIBLE_DEVICES" || return
    fi
    [ "${#gpu_domains[@]}" -ge "$ranks" ] || return
    while read -r line; do
        case $line in Cpus_allowed_list:*) read_cpus "${line##*[[:space:]]}" ;; esac
    done <"$root/proc/self/status"
    for core in "${!listed[@]}"; do allowed[core]=1; done
    for ((place = 0; place < ranks; place++)); do # how many processes share each domain, and which of them this is
        domain=${gpu_domains[place]}
        [ "$domain" -ge 0 ] || return
        [ "$place" -ne "$rank" ] || own=$domain first=${shares[domain]:-0}
        shares[domain]=$((${shares[domain]:-0} + 1))
    done
    for domain in "${!shares[@]}"; do # all, so that no process is bound where another one cannot be
        read_cores "$domain"
        [ "${#cores[@]}" -ge "${shares[domain]}" ] || return
        [ "$domain" -ne "$own" ] || mine=("${cores[@]}")
    done
    count=${#mine[@]}
    if [ "$1" = exclusive ]; then
        place=$((first * (count / shares[own]) + (first < count % shares[own] ? first : count % shares[own])))
        count=$((count / shares[own] + (first < count % shares[own] ? 1 : 0)))
        mine=("${mine[@]:place:count}")
    fi
    line=$(IFS=,; echo "${mine[*]}")
    taskset -p -c "$line" "$$" >/dev/null 2>&1
}
{ declare -f bind_rank; printf 'bind_rank "$1"\nexec "${@:2}"\n'; } >"$attempt_dir/bind.sh" || die "cannot write $attempt_dir/bind.sh"
