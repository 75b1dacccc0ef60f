/* The part of NVML's ABI that the fake answers itself.
 *
 * Names, numbers and layouts are those of the public interface, as the Python binding declares
 * them; everything else the binding knows is generated as a stub that is "not supported".
 */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO };
enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };
enum { NVML_DEVICE_ARCH_AMPERE = 7 };

enum {
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83,
    NVML_FI_DEV_POWER_AVERAGE = 185,
    NVML_FI_DEV_POWER_INSTANT = 186,
    NVML_FI_DEV_POWER_MIN_LIMIT = 187,
    NVML_FI_DEV_POWER_MAX_LIMIT = 188,
    NVML_FI_DEV_POWER_DEFAULT_LIMIT = 189,
    NVML_FI_DEV_POWER_CURRENT_LIMIT = 190,
    NVML_FI_DEV_POWER_REQUESTED_LIMIT = 192,
};

#define NVML_CLOCK_LIMIT_ID_RANGE_START 0xffffff00U
#define NVML_CLOCK_LIMIT_ID_TDP 0xffffff01U
#define NVML_CLOCK_LIMIT_ID_UNLIMITED 0xffffff02U
#define NVML_EVENT_REASON_IDLE 0x1ULL
#define NVML_EVENT_REASON_SW_POWER_CAP 0x4ULL
#define NVML_MEMORY_V2 0x02000028U
#define NVML_TEMPERATURE_V1 0x0100000cU

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

typedef struct {
    char busIdLegacy[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    uint32_t version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    uint32_t gpu, memory;
} nvmlUtilization_t;

typedef struct {
    uint32_t version, sensorType;
    int32_t temperature;
} nvmlTemperature_t;

typedef union {
    double dVal;
    uint32_t uiVal;
    unsigned long long ullVal;
} nvmlValue_t;

typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    uint32_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

#endif
