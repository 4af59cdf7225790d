/* A stand-in for libnvidia-ml.so.1, for tests only. Own declarations of the few calls that Terazi's probe makes.
 *
 * The file named by FAKE_NVML holds key=value lines and is read at each call:
 *   init=0            what nvmlInitWithFlags returns
 *   hang=init|memory1 sleep for ever in that call (memoryN: in the memory call of card N)
 *   log=file          a byte is added to it for each init
 *   count=2  driver=575.51
 *   0.name=... 0.uuid=... 0.bus=00000000:01:00.0 0.total=bytes 0.free= 0.used= 0.reserved= 0.limit=mW 0.draw=mW
 *   0.gen=4 0.width=16 0.width_now=16 0.lost=1 0.memory=3 (what the memory call returns)
 *   0.temp=degrees 0.slowed=mask of reasons
 *   0-1.p2p=0 0-1.nvlink=0  (0 = possible)
 * A key that isn't there makes the call return "not supported" (3). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15 };
typedef struct card { int index; } card;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;

static card cards[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

static int look_up(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    size_t n = strlen(key);
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, n) == 0 && line[n] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + n + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int text_of(const card *c, const char *field, char *value, unsigned size) {
    char key[64];
    snprintf(key, sizeof key, "%d.%s", c->index, field);
    return look_up(key, value, size);
}

static int number_of(const card *c, const char *field, unsigned long long *value) {
    char text[64];
    if (!text_of(c, field, text, sizeof text)) return 0;
    *value = strtoull(text, NULL, 0);
    return 1;
}

static int unsigned_of(const card *c, const char *field, unsigned *value) {
    unsigned long long wide;
    if (number_of(c, "lost", &wide)) return LOST;
    if (!number_of(c, field, &wide)) return NOT_SUPPORTED;
    *value = (unsigned)wide;
    return OK;
}

static void hang_if(const char *where) {
    char value[64];
    if (look_up("hang", value, sizeof value) && strcmp(value, where) == 0) for (;;) pause();
}

int nvmlInitWithFlags(unsigned flags) {
    char value[64], path[512];
    FILE *log;
    (void)flags;
    if (look_up("log", path, sizeof path) && (log = fopen(path, "a"))) {
        fputc('.', log);
        fclose(log);
    }
    hang_if("init");
    return look_up("init", value, sizeof value) ? atoi(value) : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == 18 ? "Driver/library version mismatch" : code == LOST ? "GPU is lost" : "some error";
}
int nvmlSystemGetDriverVersion(char *value, unsigned size) {
    return look_up("driver", value, size) ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    char value[64];
    *count = look_up("count", value, sizeof value) ? (unsigned)atoi(value) : 0;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, card **handle) {
    if (index >= 8) return INVALID;
    *handle = &cards[index];
    return OK;
}
int nvmlDeviceGetName(card *c, char *value, unsigned size) { return text_of(c, "name", value, size) ? OK : NOT_SUPPORTED; }
int nvmlDeviceGetUUID(card *c, char *value, unsigned size) { return text_of(c, "uuid", value, size) ? OK : NOT_SUPPORTED; }
int nvmlDeviceGetPciInfo_v3(card *c, pci_info *info) {
    memset(info, 0, sizeof *info);
    return text_of(c, "bus", info->bus_id, sizeof info->bus_id) ? OK : NOT_SUPPORTED;
}
static int memory_of(card *c, memory_v2 *m) {
    char where[32];
    unsigned long long code;
    snprintf(where, sizeof where, "memory%d", c->index);
    hang_if(where);
    if (number_of(c, "lost", &code)) return LOST;
    if (number_of(c, "memory", &code)) return (int)code;
    if (!number_of(c, "total", &m->total)) return NOT_SUPPORTED;
    m->free = m->used = m->reserved = 0;
    number_of(c, "free", &m->free);
    number_of(c, "used", &m->used);
    number_of(c, "reserved", &m->reserved);
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(card *c, memory_v2 *m) {
    char value[8];
    if (look_up("old_driver", value, sizeof value)) return NOT_SUPPORTED;
    return m->version == 0x2000028 ? memory_of(c, m) : INVALID;
}
int nvmlDeviceGetMemoryInfo(card *c, memory_v1 *m) {
    memory_v2 wide;
    int code = memory_of(c, &wide);
    if (code != OK) return code;
    m->total = wide.total;
    m->free = wide.free;
    m->used = wide.used + wide.reserved;
    return OK;
}
int nvmlDeviceGetTemperature(card *c, int sensor, unsigned *value) { return sensor ? INVALID : unsigned_of(c, "temp", value); }
int nvmlDeviceGetCurrentClocksThrottleReasons(card *c, unsigned long long *value) {
    return number_of(c, "slowed", value) ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetEnforcedPowerLimit(card *c, unsigned *value) { return unsigned_of(c, "limit", value); }
int nvmlDeviceGetPowerUsage(card *c, unsigned *value) { return unsigned_of(c, "draw", value); }
int nvmlDeviceGetMaxPcieLinkGeneration(card *c, unsigned *value) { return unsigned_of(c, "gen", value); }
int nvmlDeviceGetMaxPcieLinkWidth(card *c, unsigned *value) { return unsigned_of(c, "width", value); }
int nvmlDeviceGetCurrPcieLinkWidth(card *c, unsigned *value) { return unsigned_of(c, "width_now", value); }
int nvmlDeviceGetP2PStatus(card *a, card *b, int index, int *status) {
    char key[64], value[64];
    snprintf(key, sizeof key, "%d-%d.%s", a->index, b->index, index == 2 ? "nvlink" : "p2p");
    *status = look_up(key, value, sizeof value) ? atoi(value) : 5;
    return OK;
}
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_v3;
int nvmlDeviceGetComputeRunningProcesses_v3(card *c, unsigned *count, process_v3 *found) {
    unsigned long long pid, used;
    if (!number_of(c, "pid", &pid) || !number_of(c, "pid_used", &used)) return NOT_SUPPORTED;
    if (!found || *count < 1) {
        *count = 1;
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    }
    *count = 1;
    found[0] = (process_v3){.pid = (unsigned)pid, .used = used};
    return OK;
}
/* nvmlDeviceGetMigMode and nvmlDeviceGetCudaComputeCapability are missing on purpose: an older driver lacks calls. */
