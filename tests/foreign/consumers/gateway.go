// Keeps the module whose definitions the tests read.

package main

import _ "sigs.k8s.io/gateway-api/apis/v1"
