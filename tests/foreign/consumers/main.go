// Gives documents to the published schemas of Kubernetes objects, as `kubectl apply` gives them to an API
// server that refuses unknown fields.
//
// Arguments: files with definitions of objects, `--`, files with documents, all in YAML. For each document it
// prints a line with tabs between kind and name, and each reason to refuse it.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

func main() {
	log.SetFlags(0)
	end := slices.Index(os.Args, "--")
	if end < 0 {
		log.Fatal("arguments: DEFINITIONS... -- DOCUMENTS...")
	}
	definitions := definitions{}
	for _, file := range os.Args[1:end] {
		each(file, definitions.add)
	}
	for _, file := range os.Args[end+1:] {
		each(file, func(document []byte) error {
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(document); err != nil {
				return err
			}
			line := []string{object.GetKind() + " " + object.GetName()}
			for _, reason := range definitions.refusals(object) {
				line = append(line, strings.Join(strings.Fields(reason), " "))
			}
			fmt.Println(strings.Join(line, "\t"))
			return nil
		})
	}
}

// Calls a function with each document of a file, as JSON. A key that is there twice is an error.
func each(file string, use func([]byte) error) {
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			document, err = strict.YAMLToJSONStrict(document)
		}
		if err == nil && !bytes.Equal(document, []byte("null")) {
			err = use(document)
		}
		if err != nil {
			log.Fatalf("%s: %v", file, err)
		}
	}
}
