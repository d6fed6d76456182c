/* A stand-in for libnvidia-ml.so.1: GPUs made of a file.
 *
 * The file named by NVML_STAND_IN holds a `control` (stand_in.py writes it); every call answers from
 * it, so that whoever holds the file sets counters, power and errors while other processes, with an
 * unmodified nvidia-ml-py, read them. Without the file the driver is "not loaded".
 *
 * What is strict on purpose: a handle is good until NVML is shut down, GPUs are those there were at
 * nvmlInit, and a GPU that was lost stays lost until NVML is started anew.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 16, FAULTS = 8, CLOCKS = 32, PIDS = 8, TENANTS = 7, TEXT = 80, KEPT = 120 };

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, VERSION_MISMATCH = 18,
};

typedef struct {
    char call[TEXT]; /* a function's name, or "field 83" */
    uint32_t code;   /* what it answers instead */
} fault;

typedef struct {
    char uuid[TEXT], name[TEXT];
    fault faults[FAULTS];
    uint32_t present, lost, latency_us, architecture, mig, persistence;
    uint32_t power_mw, min_limit_mw, max_limit_mw, default_limit_mw, requested_mw;
    uint32_t ceiling_mw; /* another limiter's, 0: none */
    uint32_t clock_mhz, locked_mhz, memory_clock_mhz, temperature_c, utilization_pct;
    uint32_t clock_count, clocks_mhz[CLOCKS], pid_count, pids[PIDS];
    uint64_t energy_mj;
    uint64_t since_ns, period_ns; /* period: the counter adds power_mw since CLOCK_MONOTONIC since_ns */
    uint64_t memory_bytes, calls;
    uint32_t module_power_mw; /* of scope 1, 0: there is none */
    uint32_t tenant_count;
    char tenants[TENANTS][TEXT]; /* UUIDs of MIG instances */
    uint64_t played_ns; /* a recording beside the file plays since this CLOCK_MONOTONIC; 0: none does */
    uint64_t locked_memory_mhz;
    uint32_t round_mw;     /* a set is rounded up to a multiple, 0: taken as asked */
    uint32_t clamp_mw;     /* a lower set takes this, 0: taken as asked */
    uint32_t ignored_sets; /* so many sets are answered OK, and change nothing */
    uint32_t profiles, requested_profiles; /* bits of workload power profiles, 0: it has none */
    uint64_t used_bytes, process_bytes[PIDS]; /* of a process 0: it is not known */
    uint32_t round_mhz;    /* a locked clock runs at a multiple below, 0: as asked */
    uint32_t heeds_locks;  /* 0: a lock changes nothing */
    uint64_t follows_ns, locked_ns; /* a lock counts so long after it was set, at locked_ns */
    uint64_t samples_us; /* distance of the samples of power that are kept; 0: none are */
} gpu;

/* What the GPU shows from an instant of its recording on. */
typedef struct {
    uint64_t t_ns, energy_mj, power_mw;
} shown;

typedef struct {
    uint32_t bytes; /* of this struct, as its writer understands it */
    char driver[TEXT];
    fault faults[FAULTS];
    gpu gpus[GPUS];
} control;

typedef struct {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    uint32_t type, code;
    union { uint64_t u64; uint32_t u32; } value;
} field_value;

typedef struct { uint32_t pid; uint64_t bytes; uint32_t instance, compute_instance; } process_info;
typedef struct { uint32_t gpu, memory; } utilization;
typedef struct { uint64_t total, free, used; } memory_info;
typedef struct { uint64_t timestamp_us; union { uint64_t u64; uint32_t u32; } value; } sample;
typedef void *device_t;
typedef uint32_t result;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t users, generation, count;
static uint32_t slots[GPUS], was_lost[GPUS];
static control *state;
static const shown *recordings[GPUS];
static size_t lengths[GPUS];

static result fault_of(const fault *faults, const char *call) {
    for (int i = 0; i < FAULTS; i++)
        if (faults[i].code && strcmp(faults[i].call, call) == 0) return faults[i].code;
    return OK;
}

/* Map a GPU's recording, PATH.SLOT, if there is one; like the control, it is never unmapped. */
static void map_recording(const char *path, uint32_t slot) {
    char name[4096];
    snprintf(name, sizeof name, "%s.%u", path, slot);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    struct stat status;
    lengths[slot] = file >= 0 && fstat(file, &status) == 0 ? status.st_size / sizeof(shown) : 0;
    if (lengths[slot]) {
        void *mapped = mmap(NULL, lengths[slot] * sizeof(shown), PROT_READ, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) lengths[slot] = 0;
        else recordings[slot] = mapped;
    }
    if (file >= 0) close(file);
}

/* The file is mapped anew at each start and never unmapped: a late call reads old bytes, not none. */
static result start(void) {
    const char *path = getenv("NVML_STAND_IN");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return DRIVER_NOT_LOADED;
    struct stat status;
    int whole = fstat(file, &status) == 0 && status.st_size >= (off_t)sizeof(control);
    control *mapped = whole ? mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (mapped == MAP_FAILED) return DRIVER_NOT_LOADED;
    if (mapped->bytes != sizeof *mapped) return VERSION_MISMATCH;
    result code = fault_of(mapped->faults, "nvmlInit");
    if (code) return code;
    state = mapped;
    generation++;
    count = 0;
    memset(was_lost, 0, sizeof was_lost);
    for (uint32_t i = 0; i < GPUS; i++)
        if (state->gpus[i].present) {
            slots[count++] = i;
            map_recording(path, i);
        }
    return OK;
}

result nvmlInitWithFlags(uint32_t flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    result code = users ? OK : start();
    if (code == OK) users++;
    pthread_mutex_unlock(&lock);
    return code;
}

result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

result nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    result code = users ? fault_of(state->faults, __func__) : UNINITIALIZED;
    if (users) users--;
    pthread_mutex_unlock(&lock);
    return code;
}

const char *nvmlErrorString(result code) {
    (void)code;
    return "an error without a text";
}

static result enter_driver(const char *call) { return users ? fault_of(state->faults, call) : UNINITIALIZED; }

static device_t handle_of(uint32_t slot) {
    return (device_t)((uintptr_t)generation << 8 | (slot + 1));
}

static result enter(device_t device, const char *call, gpu **found) {
    if (!users) return UNINITIALIZED;
    uint32_t slot = ((uintptr_t)device & 0xff) - 1;
    if (slot >= GPUS || device != handle_of(slot)) return INVALID_ARGUMENT;
    gpu *g = *found = &state->gpus[slot];
    __atomic_add_fetch(&g->calls, 1, __ATOMIC_RELAXED);
    if (g->latency_us)
        nanosleep(&(struct timespec){g->latency_us / 1000000, g->latency_us % 1000000 * 1000L}, NULL);
    if (g->lost) was_lost[slot] = 1;
    return was_lost[slot] ? GPU_IS_LOST : fault_of(g->faults, call);
}

#define DRIVER                             \
    result code = enter_driver(__func__);  \
    if (code) return code
#define DEVICE                                     \
    gpu *g;                                        \
    result code = enter(device, __func__, &g);     \
    if (code) return code
#define GET(function, type, expression)            \
    result function(device_t device, type *out) {  \
        DEVICE;                                    \
        *out = (expression);                       \
        return OK;                                 \
    }

static result text(char *out, uint32_t room, const char *value) {
    if (strlen(value) >= room) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

static uint32_t enforced_mw(const gpu *g) {
    return g->ceiling_mw && g->ceiling_mw < g->requested_mw ? g->ceiling_mw : g->requested_mw;
}

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
}

/* What a recording shows now: its last line that is not later; before its first, that one. */
static const shown *played(const gpu *g) {
    size_t slot = g - state->gpus, low = 0, high = lengths[slot];
    if (!g->played_ns || !high) return NULL;
    uint64_t now_ns = monotonic_ns();
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (g->played_ns + recordings[slot][middle].t_ns <= now_ns) low = middle;
        else high = middle;
    }
    return &recordings[slot][low];
}

static uint32_t power_mw(const gpu *g) {
    const shown *now = played(g);
    return now ? now->power_mw : g->power_mw;
}

static uint64_t energy_at(const gpu *g, uint64_t now_ns) {
    const shown *now = played(g);
    if (now) return now->energy_mj;
    if (!g->period_ns) return g->energy_mj;
    uint64_t past_ns = now_ns - g->since_ns;
    uint64_t counted_ns = past_ns / g->period_ns * g->period_ns;
    return g->energy_mj + (uint64_t)((unsigned __int128)g->power_mw * counted_ns / 1000000000u);
}

result nvmlSystemGetDriverVersion(char *out, uint32_t room) {
    DRIVER;
    return text(out, room, state->driver);
}

result nvmlDeviceGetCount_v2(uint32_t *out) {
    DRIVER;
    *out = count;
    return OK;
}

result nvmlDeviceGetHandleByIndex_v2(uint32_t index, device_t *out) {
    DRIVER;
    if (index >= count) return INVALID_ARGUMENT;
    gpu *g;
    *out = handle_of(slots[index]);
    return enter(*out, __func__, &g);
}

result nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) {
    DRIVER;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(state->gpus[slots[i]].uuid, uuid) == 0) {
            gpu *g;
            *out = handle_of(slots[i]);
            return enter(*out, __func__, &g);
        }
    return NOT_FOUND;
}

result nvmlDeviceGetIndex(device_t device, uint32_t *out) {
    DEVICE;
    for (*out = 0; &state->gpus[slots[*out]] != g; ++*out) {}
    return OK;
}

typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char place[32]; } pci_info;

result nvmlDeviceGetPciInfo_v3(device_t device, pci_info *out) {
    DEVICE;
    memset(out, 0, sizeof *out);
    snprintf(out->place, sizeof out->place, "00000000:%02X:00.0", (unsigned)(0xA0 + (g - state->gpus)));
    return OK;
}

result nvmlDeviceGetName(device_t device, char *out, uint32_t room) {
    DEVICE;
    return text(out, room, g->name);
}

/* A MIG instance's handle is its GPU's with its place, from 1 on, above: good for its UUID only. */
enum { PLACE = 48 };

result nvmlDeviceGetMaxMigDeviceCount(device_t device, uint32_t *out) {
    DEVICE;
    *out = TENANTS;
    return OK;
}

result nvmlDeviceGetMigDeviceHandleByIndex(device_t device, uint32_t place, device_t *out) {
    DEVICE;
    if (!g->mig || place >= g->tenant_count) return NOT_FOUND;
    *out = (device_t)((uintptr_t)device | (uintptr_t)(place + 1) << PLACE);
    return OK;
}

result nvmlDeviceGetUUID(device_t device, char *out, uint32_t room) {
    uintptr_t place = (uintptr_t)device >> PLACE;
    device = (device_t)((uintptr_t)device & (((uintptr_t)1 << PLACE) - 1));
    DEVICE;
    if (place) return text(out, room, g->tenants[place - 1]);
    return text(out, room, g->uuid);
}

GET(nvmlDeviceGetTotalEnergyConsumption, uint64_t, energy_at(g, monotonic_ns()))
GET(nvmlDeviceGetPowerUsage, uint32_t, power_mw(g))
GET(nvmlDeviceGetPowerManagementLimit, uint32_t, g->requested_mw)
GET(nvmlDeviceGetEnforcedPowerLimit, uint32_t, enforced_mw(g))
GET(nvmlDeviceGetPowerManagementDefaultLimit, uint32_t, g->default_limit_mw)
GET(nvmlDeviceGetPersistenceMode, uint32_t, g->persistence)
GET(nvmlDeviceGetArchitecture, uint32_t, g->architecture)
GET(nvmlDeviceGetUtilizationRates, utilization, ((utilization){g->utilization_pct, 0}))
GET(nvmlDeviceGetMemoryInfo, memory_info, ((memory_info){g->memory_bytes, g->memory_bytes - g->used_bytes, g->used_bytes}))

result nvmlDeviceGetPowerManagementLimitConstraints(device_t device, uint32_t *lowest, uint32_t *highest) {
    DEVICE;
    *lowest = g->min_limit_mw;
    *highest = g->max_limit_mw;
    return OK;
}

result nvmlDeviceSetPowerManagementLimit(device_t device, uint32_t limit_mw) {
    DEVICE;
    if (limit_mw < g->min_limit_mw || limit_mw > g->max_limit_mw) return INVALID_ARGUMENT;
    if (g->ignored_sets) {
        g->ignored_sets--;
        return OK;
    }
    if (limit_mw < g->clamp_mw) limit_mw = g->clamp_mw;
    if (g->round_mw) limit_mw = (limit_mw + g->round_mw - 1) / g->round_mw * g->round_mw;
    g->requested_mw = limit_mw;
    return OK;
}

result nvmlDeviceSetPersistenceMode(device_t device, uint32_t mode) {
    DEVICE;
    g->persistence = mode;
    return OK;
}

result nvmlDeviceGetMigMode(device_t device, uint32_t *current, uint32_t *pending) {
    DEVICE;
    *current = *pending = g->mig;
    return OK;
}

result nvmlDeviceGetClockInfo(device_t device, uint32_t type, uint32_t *out) {
    DEVICE;
    uint32_t locked = g->round_mhz ? g->locked_mhz / g->round_mhz * g->round_mhz : g->locked_mhz;
    int heeded = g->heeds_locks && locked && monotonic_ns() >= g->locked_ns + g->follows_ns;
    *out = type == 2 ? g->memory_clock_mhz : heeded && locked < g->clock_mhz ? locked : g->clock_mhz;
    return OK;
}

result nvmlDeviceGetTemperature(device_t device, uint32_t sensor, uint32_t *out) {
    DEVICE;
    if (sensor) return INVALID_ARGUMENT;
    *out = g->temperature_c;
    return OK;
}

/* NVML's way with lists: too small an array is answered with the size it should have. */
static result list(uint32_t *room, uint32_t *out, const uint32_t *values, uint32_t n) {
    uint32_t had = *room;
    *room = n;
    if (n && (!out || had < n)) return INSUFFICIENT_SIZE;
    if (n) memcpy(out, values, n * sizeof *values);
    return OK;
}

result nvmlDeviceGetSupportedMemoryClocks(device_t device, uint32_t *room, uint32_t *out) {
    DEVICE;
    return list(room, out, &g->memory_clock_mhz, 1);
}

result nvmlDeviceGetSupportedGraphicsClocks(device_t device, uint32_t memory_mhz, uint32_t *room, uint32_t *out) {
    DEVICE;
    if (memory_mhz != g->memory_clock_mhz) return NOT_FOUND;
    return list(room, out, g->clocks_mhz, g->clock_count);
}

result nvmlDeviceSetGpuLockedClocks(device_t device, uint32_t lowest_mhz, uint32_t highest_mhz) {
    DEVICE;
    if (lowest_mhz > highest_mhz) return INVALID_ARGUMENT;
    g->locked_mhz = highest_mhz;
    g->locked_ns = monotonic_ns();
    return OK;
}

result nvmlDeviceResetGpuLockedClocks(device_t device) {
    DEVICE;
    g->locked_mhz = 0;
    return OK;
}

/* The driver names memory clocks of every GPU, and locks them from Ampere on. */
result nvmlDeviceSetMemoryLockedClocks(device_t device, uint32_t lowest_mhz, uint32_t highest_mhz) {
    DEVICE;
    if (g->architecture < 7) return NOT_SUPPORTED;
    if (lowest_mhz > highest_mhz) return INVALID_ARGUMENT;
    g->locked_memory_mhz = highest_mhz;
    return OK;
}

result nvmlDeviceResetMemoryLockedClocks(device_t device) {
    DEVICE;
    if (g->architecture < 7) return NOT_SUPPORTED;
    g->locked_memory_mhz = 0;
    return OK;
}

/* Workload power profiles. Of those requested the one of the least number is in force. */
typedef struct { uint32_t version, there[8], requested[8], enforced[8]; } current_profiles;
typedef struct { uint32_t version, wanted[8]; } wanted_profiles;

result nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(device_t device, current_profiles *out) {
    DEVICE;
    if (!g->profiles) return NOT_SUPPORTED;
    if (out->version != (1u << 24 | sizeof *out)) return VERSION_MISMATCH;
    out->there[0] = g->profiles;
    out->requested[0] = g->requested_profiles;
    out->enforced[0] = g->requested_profiles & -g->requested_profiles;
    return OK;
}

result nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(device_t device, wanted_profiles *wanted) {
    DEVICE;
    if (!g->profiles) return NOT_SUPPORTED;
    if (wanted->wanted[0] & ~g->profiles) return INVALID_ARGUMENT;
    g->requested_profiles |= wanted->wanted[0];
    return OK;
}

result nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(device_t device, wanted_profiles *wanted) {
    DEVICE;
    if (!g->profiles) return NOT_SUPPORTED;
    g->requested_profiles &= ~wanted->wanted[0];
    return OK;
}

static result processes(const gpu *g, uint32_t *room, process_info *out) {
    uint32_t had = *room, n = *room = g->pid_count;
    if (n && (!out || had < n)) return INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (process_info){g->pids[i], g->process_bytes[i] ? g->process_bytes[i] : UINT64_MAX, UINT32_MAX, UINT32_MAX};
    return OK;
}

result nvmlDeviceGetComputeRunningProcesses_v3(device_t device, uint32_t *room, process_info *out) {
    DEVICE;
    return processes(g, room, out);
}

/* The only one of drivers before 510. */
result nvmlDeviceGetComputeRunningProcesses_v2(device_t device, uint32_t *room, process_info *out) {
    DEVICE;
    return processes(g, room, out);
}

static result field(const gpu *g, field_value *out, uint64_t now_ns) {
    char name[TEXT];
    snprintf(name, sizeof name, out->scope ? "field %u scope %u" : "field %u", out->field, out->scope);
    result code = fault_of(g->faults, name);
    if (code) return code;
    if (out->field == 83) {
        out->type = 3;
        out->value.u64 = energy_at(g, now_ns);
        return OK;
    }
    uint32_t value;
    switch (out->field) {
        case 185: case 186:
            if (out->scope && !g->module_power_mw) return NOT_SUPPORTED;
            value = out->scope ? g->module_power_mw : power_mw(g);
            break;
        case 187: value = g->min_limit_mw; break;
        case 188: value = g->max_limit_mw; break;
        case 189: value = g->default_limit_mw; break;
        case 190: value = enforced_mw(g); break;
        case 192: value = g->requested_mw; break;
        default: return NOT_SUPPORTED;
    }
    out->type = 1;
    out->value.u64 = 0xa5a5a5a5a5a5a5a5; /* only 32 bits of the union are the value */
    out->value.u32 = value;
    return OK;
}

/* The samples of power since an instant, oldest first; without room for them, how many are kept. */
result nvmlDeviceGetSamples(
    device_t device, uint32_t which, uint64_t since_us, uint32_t *type, uint32_t *n, sample *samples
) {
    DEVICE;
    if (which || !g->samples_us) return NOT_SUPPORTED;
    *type = 1;
    if (!samples) {
        *n = KEPT;
        return OK;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t last = ((uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000) / g->samples_us;
    uint64_t first = since_us / g->samples_us + 1;
    if (first + KEPT <= last) first = last - KEPT + 1;
    *n = first > last ? 0 : last - first + 1;
    for (uint32_t i = 0; i < *n; i++) {
        samples[i].timestamp_us = (first + i) * g->samples_us;
        samples[i].value.u64 = 0xa5a5a5a5a5a5a5a5;
        samples[i].value.u32 = power_mw(g);
    }
    return *n ? OK : NOT_FOUND;
}

result nvmlDeviceGetFieldValues(device_t device, int32_t n, field_value *values) {
    DEVICE;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t now_ns = monotonic_ns();
    int64_t stamp_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    for (int32_t i = 0; i < n; i++) {
        values[i].code = field(g, &values[i], now_ns);
        values[i].timestamp_us = stamp_us;
        values[i].latency_us = 35;
    }
    return OK;
}
