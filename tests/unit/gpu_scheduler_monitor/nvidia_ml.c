/* A stand-in for libnvidia-ml.so.1: answers from the file named by FAKE_NVML, read at every call.
 * One line is one fact: "boards 2", "0.uuid GPU-a", "0.lost 1", "hang 1", "xid 3 0 79" (the number
 * of the event, the board, the Xid: each number is told once). What is not in the file is 0 or "".
 * "shared PATH": memory in use of processes of the stand-in for CUDA, in files PATH.*, which each
 * process locks while it lives (tests/contract/cuda_driver.c); they are the processes of the boards.
 * "0.extra_mib 9": what each of them has beyond what it asked the driver for, as libraries do.
 * "no_figures 1": the memory of processes is not available, as under WSL.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15 };
typedef struct { int board, slice; } Device; /* slice -1: the board itself */
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } Process;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { Device *device; unsigned long long type, data; unsigned gpu, compute; } Event;

static Device devices[16][9];
static unsigned long long last_event;

static int fact(const char *key, char *value) {
    char line[256];
    size_t length = strlen(key);
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    int found = 0;
    *value = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            strcpy(value, line + length + 1);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}

static unsigned long long number(const char *key) {
    char value[256];
    return fact(key, value) ? strtoull(value, NULL, 10) : 0;
}

static char *name(const Device *device, const char *key) {
    static char text[128];
    if (device->slice < 0) snprintf(text, sizeof text, "%d.%s", device->board, key);
    else snprintf(text, sizeof text, "%d.%d.%s", device->board, device->slice, key);
    return text;
}

static unsigned long long of(const Device *device, const char *key) {
    return number(name(device, key));
}

static int lost(const Device *device) {
    Device board = {device->board, -1};
    return of(&board, "lost") ? LOST : OK;
}

static int text_of(const Device *device, const char *key, char *into) {
    int gone = lost(device);
    if (!gone) fact(name(device, key), into);
    return gone;
}

/* The process that locks a file; 0 where /proc/locks does not show it. */
static unsigned holder_of(FILE *file) {
    char line[256], type[16];
    unsigned pid, found = 0;
    unsigned long inode;
    struct stat about;
    FILE *locks = fopen("/proc/locks", "r");
    if (!locks || fstat(fileno(file), &about)) return 0;
    while (fgets(line, sizeof line, locks))
        if (sscanf(line, "%*d: %15s %*s %*s %u %*x:%*x:%lu", type, &pid, &inode) == 3
            && !strcmp(type, "FLOCK") && inode == about.st_ino) found = pid;
    fclose(locks);
    return found;
}

/* Memory of a board that living processes use, which are listed in `into`; files of dead ones are removed. */
static unsigned long long used_by_processes(const Device *device, Process *into, unsigned room, unsigned *count) {
    char path[256], pattern[512], uuid[256], line[512], *space;
    unsigned long long sum = 0, own;
    glob_t found;
    if (count) *count = 0;
    fact(name(device, "uuid"), uuid);
    if (!fact("shared", path)) return 0;
    snprintf(pattern, sizeof pattern, "%s.*", path);
    if (glob(pattern, 0, NULL, &found)) return 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *file = fopen(found.gl_pathv[i], "r");
        if (!file) continue;
        own = 0;
        if (!flock(fileno(file), LOCK_EX | LOCK_NB)) unlink(found.gl_pathv[i]);
        else while (fgets(line, sizeof line, file))
            if ((space = strrchr(line, ' ')) && (*space = 0, !strcmp(line, uuid)))
                own += strtoull(space + 1, NULL, 10);
        if (own) own += of(device, "extra_mib") << 20;
        sum += own;
        unsigned pid = own && count ? holder_of(file) : 0;
        if (pid) {
            if (*count < room) into[*count] = (Process){pid, number("no_figures") ? ~0ull : own, 0, 0};
            ++*count;
        }
        fclose(file);
    }
    globfree(&found);
    return sum;
}

const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("no_driver") ? 9 : OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *into, unsigned size) {
    (void)size; fact("driver", into); return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *into) { *into = (int)number("cuda"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *into) {
    while (number("hang")) sleep(1);
    *into = (unsigned)number("boards");
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **into) {
    *into = &devices[index][8];
    **into = (Device){(int)index, -1};
    return lost(*into);
}
int nvmlDeviceGetUUID(Device *device, char *into, unsigned size) {
    (void)size; return text_of(device, "uuid", into);
}
int nvmlDeviceGetName(Device *device, char *into, unsigned size) {
    (void)size; return text_of(device, "name", into);
}
int nvmlDeviceGetMemoryInfo(Device *device, Memory *into) {
    into->total = of(device, "total_mib") << 20;
    into->used = ((of(device, "used_mib") + of(device, "reserved_mib")) << 20) + used_by_processes(device, NULL, 0, NULL);
    into->free = into->total - into->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *into) {
    if (number("old_driver")) return NOT_SUPPORTED;
    into->total = of(device, "total_mib") << 20;
    into->used = (of(device, "used_mib") << 20) + used_by_processes(device, NULL, 0, NULL);
    into->reserved = of(device, "reserved_mib") << 20;
    into->free = into->total - into->used - into->reserved;
    return OK;
}
int nvmlDeviceGetUtilizationRates(Device *device, unsigned *into) {
    if (device->slice >= 0) return NOT_SUPPORTED;
    into[0] = (unsigned)of(device, "busy_pct");
    into[1] = 0;
    return OK;
}
int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *into) {
    if (sensor != 0 || device->slice >= 0) return NOT_SUPPORTED;
    *into = (unsigned)of(device, "celsius");
    return OK;
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *into) {
    if (device->slice >= 0) return NOT_SUPPORTED;
    *into = (unsigned)of(device, "milliwatts");
    return OK;
}
static int processes(Device *device, const char *key, unsigned *count, Process *into) {
    unsigned found = (unsigned)of(device, key), room = into ? *count : 0;
    unsigned long long used = number("no_figures") ? ~0ull : of(device, "process_mib") << 20;
    char path[256];
    if (!strcmp(key, "processes") && fact("shared", path)) {
        used_by_processes(device, into, room, &found);
    } else for (unsigned i = 0; i < found && i < room; i++) into[i] = (Process){1000 + i, used, 0, 0};
    *count = found;
    return room < found ? SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *into) {
    return processes(device, "processes", count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, Process *into) {
    return processes(device, "graphics", count, into);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *device, unsigned *count, Process *into) {
    return processes(device, "mps", count, into);
}
int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    if (number("old_driver")) return NOT_SUPPORTED;
    *current = *pending = of(device, "mig") ? 1 : 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *into) {
    (void)device; *into = 7; return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **into) {
    if (index >= of(device, "mig")) return NOT_FOUND;
    *into = &devices[device->board][index];
    **into = (Device){device->board, (int)index};
    return OK;
}
int nvmlDeviceGetTotalEccErrors(Device *device, int type, int counter, unsigned long long *into) {
    (void)type; (void)counter;
    *into = of(device, "uncorrected");
    return OK;
}
int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    if (number("old_driver")) return NOT_SUPPORTED;
    *corrected = *uncorrected = 0;
    *pending = (unsigned)of(device, "remap_pending");
    *failed = (unsigned)of(device, "remap_failed");
    return OK;
}
int nvmlEventSetCreate(void **into) { *into = &last_event; return OK; }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
    (void)device; (void)types; (void)set; return OK;
}
int nvmlEventSetWait_v2(void *set, Event *into, unsigned wait_ms) {
    char value[256];
    unsigned long long event, board, xid;
    (void)set; (void)wait_ms;
    if (!fact("xid", value) || sscanf(value, "%llu %llu %llu", &event, &board, &xid) != 3
        || event <= last_event) return TIMEOUT;
    last_event = event;
    devices[board][8] = (Device){(int)board, -1};
    *into = (Event){&devices[board][8], 8, xid, 0, 0};
    return OK;
}
