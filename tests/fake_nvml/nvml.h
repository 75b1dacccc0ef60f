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
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_DEPRECATED = 26,
};

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO };
enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };
enum { NVML_DEVICE_ARCH_VOLTA = 5, NVML_DEVICE_ARCH_AMPERE = 7, NVML_DEVICE_ARCH_HOPPER = 9 };
enum { NVML_DEVICE_ARCH_BLACKWELL = 10 };
enum { NVML_PSTATE_0 = 0, NVML_PSTATE_8 = 8 };

enum { /* nvmlSamplingType_t */
    NVML_TOTAL_POWER_SAMPLES,
    NVML_GPU_UTILIZATION_SAMPLES,
    NVML_MEMORY_UTILIZATION_SAMPLES,
    NVML_ENC_UTILIZATION_SAMPLES,
    NVML_DEC_UTILIZATION_SAMPLES,
    NVML_PROCESSOR_CLK_SAMPLES,
    NVML_MEMORY_CLK_SAMPLES,
};

enum { /* nvmlPerfPolicyType_t */
    NVML_PERF_POLICY_POWER,
    NVML_PERF_POLICY_THERMAL,
    NVML_PERF_POLICY_SYNC_BOOST,
    NVML_PERF_POLICY_BOARD_LIMIT,
    NVML_PERF_POLICY_LOW_UTILIZATION,
    NVML_PERF_POLICY_RELIABILITY,
    NVML_PERF_POLICY_TOTAL_APP_CLOCKS = 10,
    NVML_PERF_POLICY_TOTAL_BASE_CLOCKS = 11,
};

enum { /* nvmlTemperatureThresholds_t */
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
};

enum {
    NVML_EVENT_XID_CRITICAL_ERROR = 0x8,
    NVML_EVENT_MIG_CONFIG_CHANGE = 0x100,
    NVML_EVENTS_SUPPORTED = 0x198, /* XID, clock, power source, MIG */
};

enum {
    NVML_FI_DEV_PERF_POLICY_POWER = 74,
    NVML_FI_DEV_PERF_POLICY_THERMAL = 75,
    NVML_FI_DEV_PERF_POLICY_SYNC_BOOST = 76,
    NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT = 77,
    NVML_FI_DEV_PERF_POLICY_RELIABILITY = 79,
    NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS = 80,
    NVML_FI_DEV_MEMORY_TEMP = 82,
    NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION = 83,
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38,
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45,
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52,
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59,
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139,
    NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX = 140,
    NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX = 141,
    NVML_FI_DEV_POWER_AVERAGE = 185,
    NVML_FI_DEV_POWER_INSTANT = 186,
    NVML_FI_DEV_POWER_MIN_LIMIT = 187,
    NVML_FI_DEV_POWER_MAX_LIMIT = 188,
    NVML_FI_DEV_POWER_DEFAULT_LIMIT = 189,
    NVML_FI_DEV_POWER_CURRENT_LIMIT = 190,
    NVML_FI_DEV_POWER_REQUESTED_LIMIT = 192,
    NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT = 193,
    NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT = 194,
    NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT = 196,
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197,
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198,
    NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES = 202,
    NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 204,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270,
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271,
};

#define NVML_CLOCK_LIMIT_ID_RANGE_START 0xffffff00U
#define NVML_CLOCK_LIMIT_ID_TDP 0xffffff01U
#define NVML_CLOCK_LIMIT_ID_UNLIMITED 0xffffff02U
#define NVML_MEMORY_V2 0x02000028U
#define NVML_TEMPERATURE_V1 0x0100000cU
#define NVML_POWER_VALUE_V2 0x0200000cU
#define NVML_PROFILES_INFO_V1 0x01002bf8U
#define NVML_PROFILES_CURRENT_V1 0x01000064U
#define NVML_PROFILES_REQUESTED_V1 0x01000024U
#define NVML_PROFILES_MAX 255

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

typedef struct {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
    unsigned long long referenceTime, violationTime;
} nvmlViolationTime_t;

typedef struct {
    uint32_t version, powerScope, powerValueMw;
} nvmlPowerValue_v2_t;

typedef struct {
    uint32_t pid;
    unsigned long long usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    uint32_t mask[8];
} nvmlMask255_t;

typedef struct {
    uint32_t version, profileId, priority;
    nvmlMask255_t conflictingMask;
} nvmlProfileInfo_t;

typedef struct {
    uint32_t version;
    nvmlMask255_t perfProfilesMask;
    nvmlProfileInfo_t perfProfile[NVML_PROFILES_MAX];
} nvmlProfilesInfo_t;

typedef struct {
    uint32_t version;
    nvmlMask255_t perfProfilesMask, requestedProfilesMask, enforcedProfilesMask;
} nvmlProfilesCurrent_t;

typedef struct {
    uint32_t version; /* or the operation, in the newer call */
    nvmlMask255_t profilesMask;
} nvmlProfilesRequested_t;

#endif
